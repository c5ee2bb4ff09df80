//! Routing of bound pods' messages to the listeners of their ranks.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Receiver;
use flash_indexer_core::DpRank;
use flash_indexer_wire::Start;

use super::decoder::Decoder;
use super::delivery::{Work, queued_bytes};
use super::{Decoders, QUEUE_FULL};
use crate::bound_pods::{
    ConnectionId, MessageOutcome, PendingRegistration, Pod, PodMessage, PodName, Refusal, Refused, RoutedMessage,
    queue_for,
};
use crate::listener::{Connection, Listener};
use crate::listener_decoder::ListenerDecoder;
use crate::message::Live;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::InstanceId;

/// Number of messages, and bytes that they take in a queue.
pub(super) fn queued_size(messages: &[PodMessage]) -> (usize, usize) {
    (messages.len(), messages.iter().map(|message| queued_bytes(&message.frames)).sum())
}

impl Decoders {
    /// Decoder of a pod. Every replica with the same number of decoders chooses the same one.
    pub fn for_pod(&self, instance: &InstanceId) -> usize {
        queue_for(instance, self.queues.len())
    }

    /// Number of decoders.
    pub fn count(&self) -> usize {
        self.queues.len()
    }

    /// Receiver of pending registrations: ranks of pods that published and are not registered.
    pub fn pending_registrations(&self) -> Receiver<PendingRegistration> {
        self.pending_registrations.clone()
    }

    /// Queues messages of a pod for its decoder. Never blocks; drops them when the queue is full.
    pub(crate) fn deliver_to_pod(&self, pod: &Arc<Pod>, messages: Vec<PodMessage>) {
        let queue = &self.queues[pod.decoder];
        let (count, bytes) = queued_size(&messages);
        if let Some(bound) = self.reserve(queue, &pod.queued, count, bytes) {
            (0..count).for_each(|_| self.metrics.rejected(QUEUE_FULL));
            self.metrics.limit_reached(bound);
            if pod.queued.begins_dropping() {
                let runs =
                    pod.listeners().into_iter().map(|listener| (Arc::clone(&listener), listener.begin_drop_run()));
                let dropped = Work::PodDropped { pod: Arc::clone(pod), runs: runs.collect() };
                // It fails only after the decoder has ended, when the service stops.
                let _ = queue.sender.send(dropped);
            }
            return;
        }
        // It fails only after the decoder has ended, when the service stops.
        let _ = queue.sender.send(Work::Pod { pod: Arc::clone(pod), messages, at: Instant::now() });
    }

    /// Reports a lost connection of the bound socket. A pod that reconnects may be another engine.
    pub(crate) fn connection_lost(&self, connection: ConnectionId) {
        for queue in &self.queues {
            // It fails only after the decoder has ended, when the service stops.
            let _ = queue.sender.send(Work::ConnectionLost(connection));
        }
    }

    /// Refuses a pending registration.
    pub fn refuse(&self, pending: PendingRegistration, refusal: Refusal) {
        let queue = &self.queues[self.for_pod(&pending.name.instance)];
        // It fails only after the decoder has ended, when the service stops.
        let _ = queue.sender.send(Work::Refused(pending.name, pending.dp_rank, refusal));
    }

    /// Counts a message of the bound socket that belongs to no pod.
    pub(crate) fn reject(&self, reason: &'static str) {
        self.metrics.message_received();
        self.metrics.rejected(reason);
    }
}

impl Decoder {
    /// Routes messages of a pod to the listeners of its ranks. Consecutive messages of one rank are decoded together.
    pub(super) fn route_messages(&mut self, pod: &Pod, messages: Vec<PodMessage>) {
        let now = Instant::now();
        let mut group: Vec<RoutedMessage> = Vec::new();
        for PodMessage { connection, frames } in messages {
            self.metrics.message_received();
            let live = match Live::from_frames(frames) {
                Ok(live) => live,
                Err(error) => {
                    self.metrics.rejected(error.reason());
                    // Any rank of the pod may have lost its next message.
                    self.apply_routed(std::mem::take(&mut group), pod, now);
                    self.mark_tail_lost(&pod.name, now);
                    continue;
                }
            };
            match self.pods.route(&pod.name, live.dp_rank(), connection, live, now) {
                MessageOutcome::Routed(message) => {
                    if group.first().is_some_and(|first| !Arc::ptr_eq(&first.listener, &message.listener)) {
                        self.apply_routed(std::mem::take(&mut group), pod, now);
                    }
                    group.push(message);
                }
                MessageOutcome::Pending(pending) => self.request_registration(pending),
                MessageOutcome::Dropped(reason) => self.metrics.rejected(reason),
                MessageOutcome::LimitReached => {
                    self.metrics.rejected(QUEUE_FULL);
                    self.metrics.limit_reached(Limit::PendingRegistrations);
                }
            }
        }
        self.apply_routed(group, pod, now);
    }

    /// Records that messages of a pod were dropped before they reached the decoder.
    pub(super) fn note_dropped(&mut self, name: &PodName, runs: &[(Arc<Listener>, u64)]) {
        let now = Instant::now();
        self.mark_tail_lost(name, now);
        for (listener, run) in runs {
            self.with_decoder(listener, |decoder, _| decoder.dropped(*run, now));
        }
    }

    /// Records that every rank of a pod may have lost messages after its last one.
    fn mark_tail_lost(&mut self, name: &PodName, now: Instant) {
        for listener in self.pods.mark_tail_lost(name) {
            self.with_decoder(&listener, |decoder, _| decoder.tail_lost(now));
        }
    }

    /// Decodes messages of one listener, and copies of them for its shadow.
    fn apply_routed(&mut self, messages: Vec<RoutedMessage>, pod: &Pod, now: Instant) {
        let Some(first) = messages.first() else { return };
        let (listener, shadow) = (Arc::clone(&first.listener), first.shadow.clone());
        pod.add_listener(&listener);
        if let Some(shadow) = shadow {
            pod.add_listener(&shadow);
            let copies = messages.iter().map(|message| (message.seen, message.live.clone())).collect();
            self.decode_each(&shadow, copies, |decoder, (seen, live)| decoder.receive_routed(seen, live, now));
        }
        self.decode_each(&listener, messages, |decoder, message| {
            decoder.receive_routed(message.seen, message.live, now)
        });
        self.report_changed_block_size(&listener);
    }

    /// Requests a new registration of a pod that restarted with another block size.
    fn report_changed_block_size(&mut self, listener: &Arc<Listener>) {
        let changed = self.listener_decoders.get_mut(&listener.id).and_then(ListenerDecoder::take_changed_block_size);
        if let Some(block_size) = changed {
            let (name, dp_rank) = (listener.pod_name(), listener.dp_rank);
            self.request_registration(Some(PendingRegistration {
                name,
                dp_rank,
                block_size: Some(block_size),
                refused_before: None,
            }));
        }
    }

    /// Requests the registration of a pod's rank; refuses it when too many are pending.
    fn request_registration(&mut self, pending: Option<PendingRegistration>) {
        let Some(pending) = pending else { return };
        if let Err(error) = self.registration_sender.try_send(pending) {
            self.metrics.limit_reached(Limit::PendingRegistrations);
            let PendingRegistration { name, dp_rank, .. } = error.into_inner();
            let why = "too many registrations of pods are pending".to_owned();
            self.refuse(&name, dp_rank, &Refusal::Refused { reason: "too_many_arrivals", why });
        }
    }

    /// Routes the messages of the listener's pod to the listener, beginning with those that waited for its registration.
    pub(super) fn attach(&mut self, listener: &Arc<Listener>, now: Instant) {
        let (waiting, is_tail_lost) = self.pods.attach(listener);
        if waiting.is_empty() && listener.start == Start::Immediate && listener.options.replay_endpoint.is_some() {
            // The replay need not wait for the pod's next message.
            self.with_decoder(listener, |decoder, _| decoder.connected(now));
        }
        self.decode_each(listener, waiting, |decoder, (seen, live)| decoder.receive_routed(seen, live, now));
        if is_tail_lost {
            self.with_decoder(listener, |decoder, _| decoder.tail_lost(now));
        }
    }

    /// Routes copies of a pod's messages to a shadow of the attached listener.
    pub(super) fn attach_shadow(&mut self, shadow: &Arc<Listener>, now: Instant) {
        let Some(connection) = self.pods.attach_shadow(shadow) else { return };
        shadow.set_connection(connection);
        if connection == Connection::Connected || shadow.options.replay_endpoint.is_some() {
            self.with_decoder(shadow, |decoder, _| decoder.connected(now));
        }
    }

    /// Refuses the registration of a pod's rank, or requests it again if its messages now contain the block size.
    pub(super) fn refuse(&mut self, name: &PodName, dp_rank: DpRank, refusal: &Refusal) {
        match self.pods.refuse(name, dp_rank, refusal, Instant::now()) {
            Refused::Retry(pending) => self.request_registration(Some(pending)),
            Refused::Dropped(messages) => {
                if let Refusal::Refused { reason, .. } = refusal {
                    (0..messages).for_each(|_| self.metrics.rejected(reason));
                }
            }
        }
    }

    /// Disconnects the listeners whose pods publish over a lost connection.
    pub(super) fn disconnect_pods(&mut self, connection: ConnectionId) {
        for listener in self.pods.listeners_on(connection) {
            listener.set_connection(Connection::Disconnected);
            self.with_decoder(&listener, |decoder, _| decoder.disconnected());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use crossbeam_channel::{bounded, unbounded};
    use parking_lot::Mutex;

    use super::super::{QUEUED_BYTES_MAX, SHARE};
    use super::*;
    use crate::decoders::Queue;
    use crate::queue::Queued;
    use crate::writer::Writers;
    use flash_indexer_telemetry::metrics::{MetricNames, Metrics};
    use flash_indexer_telemetry::supervision::Supervisor;

    fn pod(name: &str) -> Arc<Pod> {
        let name = PodName { instance: InstanceId::parse(name).expect("a name"), model_name: "m".to_owned() };
        Arc::new(Pod::new(name, 0))
    }

    fn messages(count: usize) -> Vec<PodMessage> {
        let message = || PodMessage { connection: ConnectionId(1), frames: vec![vec![0; 100]] };
        std::iter::repeat_with(message).take(count).collect()
    }

    #[test]
    fn a_flood_of_one_pod_leaves_room_for_the_others() {
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let supervisor = Supervisor::start(&metrics).expect("a thread");
        let writers = Arc::new(Writers::start(1, &supervisor).expect("a thread"));
        let (sender, work) = unbounded();
        let queued = Arc::new(Queued::default());
        // No thread decodes.
        let decoders = Decoders {
            queues: vec![Queue { sender, queued: Arc::clone(&queued) }],
            assigned: AtomicUsize::new(0),
            pending_registrations: bounded(1).1,
            threads: Mutex::default(),
            writers,
            metrics,
        };
        let (flood, others) = (pod("flood"), ["a", "b", "c"].map(pod));
        let message_bytes = queued_bytes(&vec![vec![0; 100]]);
        for _ in 0..QUEUED_BYTES_MAX / message_bytes / 100 {
            decoders.deliver_to_pod(&flood, messages(100));
        }
        for _ in 0..100 {
            others.iter().for_each(|other| decoders.deliver_to_pod(other, messages(100)));
        }
        let mut queued_messages = [0, 0];
        for work in work.try_iter() {
            match work {
                Work::Pod { pod, messages, .. } => {
                    queued_messages[usize::from(Arc::ptr_eq(&pod, &flood))] += messages.len()
                }
                Work::PodDropped { pod, .. } => assert_eq!(pod.name, flood.name, "only the flood loses messages"),
                _ => panic!("nothing else was delivered"),
            }
        }
        assert_eq!(queued_messages[0], 3 * 100 * 100, "no other pod has lost any");
        assert!(queued_messages[1] * message_bytes <= QUEUED_BYTES_MAX / SHARE && queued_messages[1] > 0);
        assert_eq!(queued.state().messages, queued_messages[0] + queued_messages[1]);
    }
}
