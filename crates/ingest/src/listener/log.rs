//! Log events and spans of listeners.

/// Logs an event of a listener: level, [`Listener`](crate::Listener), further fields and the message.
#[macro_export]
macro_rules! log_listener {
    ($level:ident, $listener:expr, $($rest:tt)+) => {{
        let listener: &$crate::Listener = &$listener;
        $crate::tracing::$level!(
            model = listener.model.key().model_name.as_str(),
            tenant = listener.model.key().tenant_id.as_str(),
            instance = listener.instance.to_string().as_str(),
            dp_rank = listener.dp_rank.0,
            endpoint = listener.options.endpoint.as_str(),
            $($rest)+
        );
    }};
}

/// A debug span of a [`Listener`](crate::Listener): one for each delivery that its decoder handles.
#[macro_export]
macro_rules! listener_span {
    ($listener:expr) => {{
        let listener: &$crate::Listener = &$listener;
        $crate::tracing::debug_span!(
            "listener",
            model = listener.model.key().model_name.as_str(),
            tenant = listener.model.key().tenant_id.as_str(),
            instance = listener.instance.to_string().as_str(),
            dp_rank = listener.dp_rank.0,
            endpoint = listener.options.endpoint.as_str(),
        )
    }};
}
