//! Topics: sorts the messages of the bound socket by pod.

use std::sync::{Arc, Weak};

use flash_indexer_core::keyed::KeyedMap;
use parking_lot::Mutex;

use super::PodName;
use super::name::{TopicError, is_too_long, queue_for};
use crate::listener::Listener;
use crate::message::Frames;

/// Limit of cached topics. The cache is cleared when it is full.
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
    /// Number of its decoder.
    pub decoder: usize,
    /// Listeners of the pod's ranks: their ranks are degraded at once when a message is dropped.
    listeners: Mutex<Vec<Weak<Listener>>>,
}

impl Pod {
    pub(crate) fn new(name: PodName, decoder: usize) -> Self {
        Self { name: Arc::new(name), decoder, listeners: Mutex::default() }
    }

    /// Adds a listener of a rank of the pod. Cost: linear in the pod's ranks.
    pub(crate) fn add_listener(&self, listener: &Arc<Listener>) {
        let mut listeners = self.listeners.lock();
        if !listeners.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(listener))) {
            listeners.retain(|known| known.strong_count() > 0);
            listeners.push(Arc::downgrade(listener));
        }
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
}

impl Topics {
    pub(crate) fn new(decoders: usize) -> Self {
        Self { decoders, known: KeyedMap::default(), topics: Vec::new(), waiting: Vec::new() }
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

    fn add_topic(&mut self, topic: Vec<u8>) -> usize {
        if self.topics.len() >= TOPICS_MAX && self.waiting.is_empty() {
            self.known.clear();
            self.topics.clear();
        }
        let pod = PodName::from_topic(&topic).map(|name| {
            let decoder = queue_for(&name.instance, self.decoders);
            Arc::new(Pod::new(name, decoder))
        });
        self.topics.push(Topic { pod, messages: Vec::new() });
        self.known.insert(topic, self.topics.len() - 1);
        self.topics.len() - 1
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
