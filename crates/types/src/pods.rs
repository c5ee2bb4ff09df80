//! Names of bound pods, from topics.

use std::fmt;

use flash_indexer_wire::TopicNames;

use crate::InstanceId;
use crate::names::{NameField, check_name};

/// Longest topic that is parsed, in bytes.
const TOPIC_BYTES_MAX: usize = 1 << 10;

/// A pod and the model that it serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodName {
    /// The instance.
    pub instance: InstanceId,
    /// The model.
    pub model_name: String,
}

/// A topic that names no pod and model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// It names no model.
    #[error("invalid topic {topic:?}: it names no model; give the engine the topic kv@<pod>@<model>")]
    NoModel {
        /// Its beginning.
        topic: String,
    },
    /// It names no pod.
    #[error("invalid topic of {bytes} bytes: it is malformed or too long; give the engine the topic kv@<pod>@<model>")]
    NoName {
        /// Its length.
        bytes: usize,
    },
}

impl TopicError {
    /// Reason label of the metric.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoModel { .. } => "topic_without_model",
            Self::NoName { .. } => "bad_topic",
        }
    }
}

impl PodName {
    /// Parses the pod and model of a topic.
    ///
    /// # Errors
    ///
    /// When the topic names none, or a name is too long.
    pub fn from_topic(topic: &[u8]) -> Result<Self, TopicError> {
        let no_name = || TopicError::NoName { bytes: topic.len() };
        if is_too_long(topic) {
            return Err(no_name());
        }
        // All engines use one form of topic.
        let names = TopicNames::of(topic).map_err(|_| no_name())?;
        let shown = || names.pod.chars().take(TOPIC_CHARS_MAX).collect();
        let model_name = names.model.ok_or_else(|| TopicError::NoModel { topic: shown() })?;
        check_name(NameField::ModelName, model_name).map_err(|_| no_name())?;
        let instance = InstanceId::parse(names.pod).map_err(|_| no_name())?;
        Ok(Self { instance, model_name: model_name.to_owned() })
    }
}

/// Whether a topic is too long to be parsed and cached.
#[must_use]
pub const fn is_too_long(topic: &[u8]) -> bool {
    topic.len() > TOPIC_BYTES_MAX
}

/// Longest part of a topic in an error, in characters.
const TOPIC_CHARS_MAX: usize = 64;

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} of model {:?}", self.instance, self.model_name)
    }
}

/// Queue of a pod, out of `queues`: FNV-1a of its name.
#[must_use]
pub fn queue_for(instance: &InstanceId, queues: usize) -> usize {
    let hash = fnv_1a(instance.as_key().as_bytes());
    (hash % queues.max(1) as u64) as usize
}

/// FNV-1a with 64 bits.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::NAME_BYTES_MAX;

    #[test]
    fn invalid_topics_are_counted_by_reason() {
        let reason =
            |topic: &[u8]| PodName::from_topic(topic).map(|name| name.to_string()).map_err(|error| error.reason());
        assert_eq!(reason(b"kv@7@org/m"), Ok("pod 7 of model \"org/m\"".to_owned()));
        assert_eq!(reason(b"kv-events"), Err("topic_without_model"));
        assert_eq!(reason(b"kv@pod@org/m@rev"), Err("topic_without_model"));
        assert_eq!(reason(b"kv@\xff@m"), Err("bad_topic"));
        assert_eq!(reason(format!("kv@{}@m", "p".repeat(257)).as_bytes()), Err("bad_topic"));
        assert_eq!(reason(format!("kv@p@{}", "m".repeat(NAME_BYTES_MAX + 1)).as_bytes()), Err("bad_topic"));
        assert_eq!(reason(format!("kv@p@{}", "m".repeat(TOPIC_BYTES_MAX)).as_bytes()), Err("bad_topic"));
    }

    #[test]
    fn queues_are_chosen_by_fnv_1a() {
        // The function's published test values.
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv_1a(text.as_bytes()), hash);
        }
        let pods = (0..1_000).map(|number| InstanceId::parse(&format!("vllm-{number}")).expect("a name"));
        let mut counts = [0; 8];
        pods.for_each(|pod| counts[queue_for(&pod, 8)] += 1);
        assert!(counts.iter().all(|&count| count > 80), "{counts:?}");
    }
}
