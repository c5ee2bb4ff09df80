//! The bound socket's side: whose a message is, by its topic.

use std::sync::{Arc, Weak};

use flash_indexer_core::keyed::KeyedMap;
use parking_lot::Mutex;

use super::PodName;
use super::name::{TopicError, is_too_long, queue_for};
use crate::decoders::Frames;
use crate::listener::Listener;
use crate::queue::Queued;

/// Topics that are resume_from. When there are more all are forgotten, and found again as messages come.
const TOPICS_MAX: usize = 1 << 15;

/// A connection that an engine has made, numbered in the order in which they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub u64);

/// A pod as the bound socket knows it.
pub(crate) struct Pod {
    pub name: PodName,
    /// Which decoder its messages go to.
    pub decoder: usize,
    /// What of its messages waits there.
    pub queued: Queued,
    /// Listeners that its messages were applied to: they lose trust at once when a message is dropped.
    followers: Mutex<Vec<Weak<Listener>>>,
}

impl Pod {
    pub(crate) fn new(name: PodName, decoder: usize) -> Self {
        Self { name, decoder, queued: Queued::default(), followers: Mutex::default() }
    }

    /// Keeps a listener that follows a rank of the pod. Cost: linear in the pod's ranks.
    pub(crate) fn note_follower(&self, listener: &Arc<Listener>) {
        let mut followers = self.followers.lock();
        if !followers.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(listener))) {
            followers.retain(|known| known.strong_count() > 0);
            followers.push(Arc::downgrade(listener));
        }
    }

    /// The listeners that follow its ranks, as far as their messages have shown.
    pub(crate) fn followers(&self) -> Vec<Arc<Listener>> {
        self.followers.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// A message of a pod.
#[derive(Debug)]
pub(crate) struct PodMessage {
    pub connection: ConnectionId,
    pub frames: Frames,
}

/// What one topic stands for, and its messages that were not handed on yet.
struct Topic {
    pod: Result<Arc<Pod>, TopicError>,
    messages: Vec<PodMessage>,
}

/// Sorts messages by pod.
pub(crate) struct Topics {
    decoders: usize,
    known: KeyedMap<Vec<u8>, usize>,
    topics: Vec<Topic>,
    /// Topics with messages that were not handed on yet.
    waiting: Vec<usize>,
}

impl Topics {
    pub(crate) fn new(decoders: usize) -> Self {
        Self { decoders, known: KeyedMap::default(), topics: Vec::new(), waiting: Vec::new() }
    }

    /// Puts a message to those of its pod.
    ///
    /// # Errors
    ///
    /// When its topic names none.
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

    /// Hands on what was sorted, a messages for each pod.
    pub(crate) fn drain(&mut self, mut drain: impl FnMut(&Arc<Pod>, Vec<PodMessage>)) {
        for at in self.waiting.drain(..) {
            let topic = &mut self.topics[at];
            if let Ok(pod) = &topic.pod {
                drain(pod, std::mem::take(&mut topic.messages));
            }
        }
    }
}
