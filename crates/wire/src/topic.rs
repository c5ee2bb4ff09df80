//! Who publishes under a topic.

/// What a topic says of its publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicNames<'t> {
    /// The pod; the whole topic where that does not name one.
    pub pod: &'t str,
    /// The pod's model; none where the topic does not name it.
    pub model: Option<&'t str>,
}

/// A topic is no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the topic is not UTF-8")]
pub struct TopicError;

impl<'t> TopicNames<'t> {
    /// Reads a topic: `kv@<pod>@<model>` with exactly these two marks names pod and model, anything else is
    /// a name as a whole, because a part of it may be any part of a name.
    ///
    /// # Errors
    ///
    /// When the topic is not UTF-8.
    pub fn of(topic: &'t [u8]) -> Result<Self, TopicError> {
        let text = str::from_utf8(topic).map_err(|_| TopicError)?;
        let mut parts = text.split('@');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("kv"), Some(pod), Some(model), None) if !pod.is_empty() && !model.is_empty() => {
                Ok(Self { pod, model: Some(model) })
            }
            _ => Ok(Self { pod: text, model: None }),
        }
    }
}
