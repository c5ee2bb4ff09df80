//! Topics: sorts the messages of the bound socket by pod.

use std::sync::{Arc, Weak};

use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_types::pods::{PodName, TopicError, is_too_long, queue_for};
use parking_lot::Mutex;

use crate::listener::Listener;
use crate::message::Frames;
use flash_indexer_queues::QueueClass;

/// Limit of cached topics. When it is reached, topics of pods without listeners are removed.
const TOPICS_MAX: usize = 1 << 15;

/// A connection of an engine. Later connections have larger numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub u64);

impl ConnectionId {
    /// A connection that ZeroMQ does not name. It is never reported as lost.
    pub(crate) const UNKNOWN: Self = Self(0);
}

/// A bound pod, with its decoder.
pub(crate) struct Pod {
    pub name: Arc<PodName>,
    /// Class of its queue.
    pub class: QueueClass,
    /// Number of its decoder.
    pub decoder: usize,
    /// Listeners of the pod's ranks: their ranks are degraded at once when a message is dropped.
    listeners: Mutex<Vec<Weak<Listener>>>,
}

impl Pod {
    pub(crate) fn new(name: PodName, decoder: usize) -> Self {
        Self { class: QueueClass::of_pod(&name), name: Arc::new(name), decoder, listeners: Mutex::default() }
    }

    /// Adds a listener of a rank of the pod. Cost: linear in the pod's ranks.
    pub(crate) fn add_listener(&self, listener: &Arc<Listener>) {
        let mut listeners = self.listeners.lock();
        if !listeners.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(listener))) {
            listeners.retain(|known| known.strong_count() > 0);
            listeners.push(Arc::downgrade(listener));
        }
    }

    /// Whether a rank of the pod is registered and has received messages.
    fn has_listeners(&self) -> bool {
        self.listeners.lock().iter().any(|known| known.strong_count() > 0)
    }

    /// Listeners of the pod's ranks that have received messages.
    pub(crate) fn listeners(&self) -> Vec<Arc<Listener>> {
        self.listeners.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// A message of a pod.
#[derive(Debug)]
pub(crate) struct PodMessage {
    pub connection: ConnectionId,
    pub frames: Frames,
}

/// The pod of one topic, and its messages since the last drain.
struct Topic {
    pod: Result<Arc<Pod>, TopicError>,
    messages: Vec<PodMessage>,
}

/// Cache of topics that sorts messages by pod.
pub(crate) struct Topics {
    decoders: usize,
    known: KeyedMap<Vec<u8>, usize>,
    topics: Vec<Topic>,
    /// Topics with messages since the last drain.
    waiting: Vec<usize>,
    /// Number of topics at which those of pods without listeners are removed.
    full_at: usize,
}

impl Topics {
    pub(crate) fn new(decoders: usize) -> Self {
        Self { decoders, known: KeyedMap::default(), topics: Vec::new(), waiting: Vec::new(), full_at: TOPICS_MAX }
    }

    /// Adds a message to its pod's messages.
    ///
    /// # Errors
    ///
    /// When the topic names no pod.
    pub(crate) fn sort(&mut self, message: PodMessage) -> Result<(), TopicError> {
        let topic: &[u8] = message.frames.first().map_or(&[], Vec::as_slice);
        if is_too_long(topic) {
            return PodName::from_topic(topic).map(drop);
        }
        let at = match self.known.get(topic) {
            Some(&at) => at,
            None => self.add_topic(topic.to_vec()),
        };
        let topic = &mut self.topics[at];
        if let Err(error) = &topic.pod {
            return Err(error.clone());
        }
        if topic.messages.is_empty() {
            self.waiting.push(at);
        }
        topic.messages.push(message);
        Ok(())
    }

    /// Listeners of the pods' ranks that have received messages.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = Arc<Listener>> {
        self.topics.iter().flat_map(|topic| &topic.pod).flat_map(|pod| pod.listeners())
    }

    fn add_topic(&mut self, topic: Vec<u8>) -> usize {
        if self.topics.len() >= self.full_at && self.waiting.is_empty() {
            self.remove_unregistered();
        }
        let pod = PodName::from_topic(&topic).map(|name| {
            let decoder = queue_for(&name.instance, self.decoders);
            Arc::new(Pod::new(name, decoder))
        });
        self.topics.push(Topic { pod, messages: Vec::new() });
        self.known.insert(topic, self.topics.len() - 1);
        self.topics.len() - 1
    }

    /// Removes the topics of pods without listeners. The others stay, because a message that is dropped degrades the listeners
    /// of its topic's pod. Registrations bound their number.
    fn remove_unregistered(&mut self) {
        let mut topics: Vec<_> = std::mem::take(&mut self.topics).into_iter().map(Some).collect();
        for (name, at) in std::mem::take(&mut self.known) {
            let is_registered = |topic: &mut Topic| topic.pod.as_ref().is_ok_and(|pod| pod.has_listeners());
            if let Some(topic) = topics[at].take_if(is_registered) {
                self.known.insert(name, self.topics.len());
                self.topics.push(topic);
            }
        }
        // At least half of the topics that the next pass looks at are added before it.
        self.full_at = TOPICS_MAX.max(2 * self.topics.len());
    }

    /// Removes the sorted messages, and calls `deliver` for each pod that has some.
    pub(crate) fn drain(&mut self, mut deliver: impl FnMut(&Arc<Pod>, Vec<PodMessage>)) {
        for at in self.waiting.drain(..) {
            let topic = &mut self.topics[at];
            if let Ok(pod) = &topic.pod {
                deliver(pod, std::mem::take(&mut topic.messages));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::Fixture;
    use flash_indexer_queues::QUEUE_BYTES_MIN;

    fn message(topic: &str) -> PodMessage {
        PodMessage { connection: ConnectionId(1), frames: vec![topic.as_bytes().to_vec()] }
    }

    /// The pods of messages that are sorted together.
    fn sorted(topics: &mut Topics, messages: impl IntoIterator<Item = String>) -> Vec<Arc<Pod>> {
        messages.into_iter().for_each(|topic| topics.sort(message(&topic)).expect("a pod's topic"));
        let mut pods = Vec::new();
        topics.drain(|pod, _| pods.push(Arc::clone(pod)));
        pods
    }

    #[test]
    fn a_pod_with_listeners_stays_when_the_topics_of_many_other_pods_arrive() {
        let fixture = Fixture::without_engines(1, QUEUE_BYTES_MIN, None);
        let listener = fixture.unconnected("bound", None);
        let mut topics = Topics::new(1);
        let registered = sorted(&mut topics, ["kv@registered@m".to_owned()]).remove(0);
        registered.add_listener(&listener);
        let unregistered = sorted(&mut topics, ["kv@unregistered@m".to_owned()]).remove(0);
        for number in 0..TOPICS_MAX {
            sorted(&mut topics, [format!("kv@pod-{number}@m")]);
        }
        let again = |topics: &mut Topics, topic: &str| sorted(topics, [topic.to_owned()]).remove(0);
        assert!(Arc::ptr_eq(&again(&mut topics, "kv@registered@m"), &registered));
        assert!(!Arc::ptr_eq(&again(&mut topics, "kv@unregistered@m"), &unregistered));
        assert!(topics.topics.len() < TOPICS_MAX, "{} topics", topics.topics.len());
    }
}
