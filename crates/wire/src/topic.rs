//! Names in a publisher's topic.

/// Names that a topic carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicNames<'t> {
    /// The publisher's pod or instance; the whole topic if the topic does not name one.
    pub pod: &'t str,
    /// The model; none if the topic does not name one.
    pub model: Option<&'t str>,
}

/// The topic is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the topic is not UTF-8")]
pub struct TopicError;

impl<'t> TopicNames<'t> {
    /// Parses a topic. `kv@<pod>@<model>` with exactly two `@` names pod and model. Any other topic is a single name,
    /// because `@` may be part of a name.
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
