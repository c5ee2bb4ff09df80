//! Log events of listeners.

/// Logs an event of a listener: level, [`Listener`](crate::ingest::Listener), further fields and the message.
macro_rules! log_listener {
    ($level:ident, $listener:expr, $($rest:tt)+) => {{
        let listener: &$crate::ingest::Listener = &$listener;
        tracing::$level!(
            model = listener.model.key().model_name.as_str(),
            tenant = listener.model.key().tenant_id.as_str(),
            instance = listener.instance.to_string().as_str(),
            dp_rank = listener.dp_rank.0,
            endpoint = listener.options.endpoint.as_str(),
            $($rest)+
        );
    }};
}

pub(crate) use log_listener;
