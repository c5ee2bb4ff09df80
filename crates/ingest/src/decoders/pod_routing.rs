//! Routing of bound pods' messages to the listeners of their ranks.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Receiver;
use flash_indexer_core::DpRank;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_telemetry::metrics::{CurveSocket, Limit};
use flash_indexer_types::pods::{PodName, queue_for};
use flash_indexer_types::{ConnectionStatus, InstanceId};
use flash_indexer_wire::Start;

use super::decoder::Decoder;
use super::delivery::{LastNumbers, PodScope, QueueKey, Work};
use super::{Decoders, QUEUE_FULL};
use crate::bound_pods::{
    Attachment, ConnectionId, LossNotice, MessageOutcome, PendingRegistration, Pod, PodMessage, Refusal,
    RefusalOutcome, RoutedMessage,
};
use crate::listener::{Listener, NoticeKind};
use crate::listener_decoder::ListenerDecoder;
use crate::message::Live;

impl Decoders {
    /// Decoder of a pod. Every replica with the same number of decoders chooses the same one.
    pub fn for_pod(&self, instance: &InstanceId) -> usize {
        queue_for(instance, self.queues.count())
    }

    /// Number of decoders.
    pub fn count(&self) -> usize {
        self.queues.count()
    }

    /// Receiver of pending registrations: ranks of pods that published and are not registered.
    pub fn pending_registrations(&self) -> Receiver<PendingRegistration> {
        self.pending_registrations.clone()
    }

    /// Queues messages of a pod for its decoder. Never blocks. When the budget is full, messages of the largest queue are
    /// dropped.
    pub(crate) fn deliver_to_pod(&self, pod: &Arc<Pod>, messages: Vec<PodMessage>) {
        let key = QueueKey::Pod { name: Arc::clone(&pod.name), class: pod.class };
        self.push(&key, pod.decoder, Work::Pod { pod: Arc::clone(pod), messages });
    }

    /// Reports an accepted connection of the bound socket, before its messages.
    pub(crate) fn connection_opened(&self, connection: ConnectionId) {
        self.connections.open(connection);
    }

    /// Reports a lost connection of the bound socket. Its pods' ranks are not exact from now on; decoders receive the
    /// notice after the messages received so far. A pod that reconnects may be another engine.
    pub(crate) fn connection_lost(&self, connection: ConnectionId) {
        let mut notices: Vec<KeyedMap<PodName, Vec<LossNotice>>> = vec![KeyedMap::default(); self.queues.count()];
        for (listener, number) in self.connections.close(connection) {
            let of_pod = notices[listener.decoder].entry(listener.pod_name()).or_default();
            of_pod.push((listener, number));
        }
        for (decoder, mut notices) in notices.into_iter().enumerate() {
            self.queues.push_behind_all(decoder, |with_work| {
                let pods = with_work.into_iter().filter_map(|key| match key {
                    QueueKey::Pod { name, .. } => Some(name),
                    QueueKey::Listener { .. } | QueueKey::Connections(_) => None,
                });
                let pods: Vec<_> = pods.collect();
                let of_one = |name: &Arc<PodName>| {
                    let (scope, notices) = (PodScope::One(Arc::clone(name)), notices.remove(&**name));
                    let work = Work::ConnectionLost(connection, scope, notices.unwrap_or_default());
                    (QueueKey::of_pod(Arc::clone(name)), work)
                };
                let mut entries: Vec<_> = pods.iter().map(of_one).collect();
                let notices = notices.into_values().flatten().collect();
                let others = Work::ConnectionLost(connection, PodScope::AllBut(pods), notices);
                entries.push((QueueKey::Connections(decoder), others));
                entries
            });
        }
    }

    /// Refuses a pending registration.
    pub fn refuse(&self, pending: PendingRegistration, refusal: Refusal) {
        let PendingRegistration { name, dp_rank, .. } = pending;
        let decoder = self.for_pod(&name.instance);
        let key = QueueKey::of_pod(Arc::new(name.clone()));
        self.push(&key, decoder, Work::Refused(name, dp_rank, refusal));
    }

    /// Counts a CURVE handshake that failed at the bound socket.
    pub(crate) fn curve_handshake_failed(&self) {
        self.metrics.curve_handshake_failed(CurveSocket::Bound);
    }

    /// Counts a message of the bound socket that belongs to no pod.
    pub(crate) fn reject(&self, reason: &'static str) {
        self.metrics.message_received();
        self.metrics.rejected(reason);
    }
}

impl Decoder {
    /// Routes messages of a pod to the listeners of its ranks. Consecutive messages of one rank are decoded together.
    pub(super) fn route_messages(&mut self, pod: &Arc<Pod>, messages: Vec<PodMessage>) {
        let now = self.clock.now();
        let mut group: Vec<RoutedMessage> = Vec::new();
        for PodMessage { connection, frames } in messages {
            self.metrics.message_received();
            let live = match Live::from_frames(frames) {
                Ok(live) => live,
                Err(error) => {
                    self.metrics.rejected(error.reason());
                    // Any rank of the pod may have lost its next message.
                    self.apply_routed(std::mem::take(&mut group), pod, now);
                    let last = |of| error.sequence().filter(|_| of == connection);
                    self.mark_tail_lost(&pod.name, last, now);
                    continue;
                }
            };
            match self.pods.route(pod, connection, live, now) {
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
    pub(super) fn record_dropped(&mut self, name: &PodName, runs: &[(Arc<Listener>, u64)], last: &LastNumbers) {
        let now = self.clock.now();
        self.mark_tail_lost(name, |connection| last.of(connection), now);
        for (listener, run) in runs {
            listener.receive_notice(NoticeKind::Dropped, *run);
            self.with_decoder(listener, |decoder, _| decoder.dropped(*run, None, now));
        }
    }

    /// Records that every rank of a pod may have lost messages after its last one. `last` is the highest sequence number that
    /// was seen on a connection, if any: a rank publishes over one connection.
    fn mark_tail_lost(&mut self, name: &PodName, last: impl Fn(ConnectionId) -> Option<u64>, now: Instant) {
        for (listener, connection) in self.pods.mark_tail_lost(name) {
            let last = connection.and_then(&last);
            self.with_decoder(&listener, |decoder, _| decoder.tail_lost(last, now));
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
    pub(super) fn report_changed_block_size(&mut self, listener: &Arc<Listener>) {
        let decoder = self.listener_decoders.get_mut(&listener.id);
        let block_size = decoder.and_then(ListenerDecoder::take_changed_block_size);
        if block_size.is_some() {
            let (name, dp_rank) = (listener.pod_name(), listener.dp_rank);
            self.request_registration(Some(PendingRegistration { name, dp_rank, block_size, refused_before: None }));
        }
    }

    /// Requests the registration of a pod's rank; refuses it when too many are pending.
    fn request_registration(&mut self, pending: Option<PendingRegistration>) {
        let Some(pending) = pending else { return };
        if let Err(error) = self.registration_sender.try_send(pending) {
            self.metrics.limit_reached(Limit::PendingRegistrations);
            let PendingRegistration { name, dp_rank, .. } = error.into_inner();
            let why = "too many registrations of pods are pending".to_owned();
            self.refuse(&name, dp_rank, &Refusal::Refused { reason: "too_many_pending_registrations", why });
        }
    }

    /// Routes the messages of the listener's pod to the listener, beginning with those that waited for its registration.
    pub(super) fn attach(&mut self, listener: &Arc<Listener>, now: Instant) {
        let Attachment { messages, pod, is_tail_lost, is_lost } = self.pods.attach(listener);
        pod.iter().for_each(|pod| pod.add_listener(listener));
        if messages.is_empty() && listener.start == Start::Immediate && listener.options.replay_endpoint.is_some() {
            // The replay need not wait for the pod's next message.
            self.with_decoder(listener, |decoder, _| decoder.connected(now));
        }
        self.decode_each(listener, messages, |decoder, (seen, live)| decoder.receive_routed(seen, live, now));
        if is_tail_lost {
            self.with_decoder(listener, |decoder, _| decoder.tail_lost(None, now));
        }
        if is_lost {
            self.disconnect(listener);
        }
    }

    /// Routes copies of a pod's messages to a shadow of the attached listener.
    pub(super) fn attach_shadow(&mut self, shadow: &Arc<Listener>, now: Instant) {
        let Some(connection) = self.pods.attach_shadow(shadow) else { return };
        shadow.set_connection(connection);
        if connection == ConnectionStatus::Connected || shadow.options.replay_endpoint.is_some() {
            self.with_decoder(shadow, |decoder, _| decoder.connected(now));
        }
    }

    /// Refuses the registration of a pod's rank, or requests it again if its messages now contain the block size.
    pub(super) fn refuse(&mut self, name: &PodName, dp_rank: DpRank, refusal: &Refusal) {
        match self.pods.refuse(name, dp_rank, refusal, self.clock.now()) {
            RefusalOutcome::Retry(pending) => self.request_registration(Some(pending)),
            RefusalOutcome::Dropped(messages) => {
                if let Refusal::Refused { reason, .. } = refusal {
                    (0..messages).for_each(|_| self.metrics.rejected(reason));
                }
            }
        }
    }

    /// Disconnects the listeners whose pods publish over a lost connection.
    pub(super) fn disconnect_pods(&mut self, connection: ConnectionId, pods: &PodScope, notices: Vec<LossNotice>) {
        let listeners = self.pods.listeners_on(connection).into_iter();
        for listener in listeners.filter(|listener| pods.contains(&listener.pod_name())) {
            self.disconnect(&listener);
        }
        // Messages that were queued earlier may belong to a later connection.
        for (listener, number) in notices {
            if self.listener_decoders.contains_key(&listener.id) {
                listener.receive_notice(NoticeKind::Disconnected, number);
                self.with_decoder(&listener, |decoder, _| decoder.former_connection_lost(number));
            }
        }
    }

    /// Disconnects a listener. The number of its notice is above those of all notices of the connection.
    fn disconnect(&mut self, listener: &Arc<Listener>) {
        let number = listener.send_notice(NoticeKind::Disconnected);
        listener.receive_notice(NoticeKind::Disconnected, number);
        listener.set_connection(ConnectionStatus::Disconnected);
        self.with_decoder(listener, |decoder, _| decoder.connection_lost(number));
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;
    use flash_indexer_test_support::wait_for;
    use flash_indexer_types::Trust;
    use flash_indexer_wire::{Encoding, EngineEvent, encode_batch};

    use super::*;
    use crate::Delivery;
    use crate::decoders::delivery::queued_bytes;
    use crate::tests::fixture::{Fixture, PATIENCE, RANK, chain_payload, payload};
    use flash_indexer_queues::{NoticePosition, QUEUE_BYTES_MIN, QueuedWork};

    fn pod(name: &str) -> Arc<Pod> {
        let name = PodName { instance: InstanceId::parse(name).expect("a name"), model_name: "m".to_owned() };
        Arc::new(Pod::new(name, 0))
    }

    fn messages(count: usize) -> Vec<PodMessage> {
        let message = || PodMessage { connection: ConnectionId(1), frames: vec![vec![0; 100]] };
        std::iter::repeat_with(message).take(count).collect()
    }

    const FIRST: ConnectionId = ConnectionId(1);
    const SECOND: ConnectionId = ConnectionId(2);

    /// A pod of one rank, which is not attached to its listener yet.
    struct BoundPod {
        fixture: Fixture,
        listener: Arc<Listener>,
        pod: Arc<Pod>,
    }

    impl BoundPod {
        fn new() -> Self {
            let fixture = Fixture::without_engines(1, QUEUE_BYTES_MIN, None);
            let listener = fixture.unconnected("bound", None);
            let pod = Arc::new(Pod::new(listener.pod_name(), 0));
            [FIRST, SECOND].into_iter().for_each(|connection| fixture.decoders.connection_opened(connection));
            Self { fixture, listener, pod }
        }

        fn publish(&self, connection: ConnectionId, sequence: u64, payload: Vec<u8>) {
            let frames = vec![b"kv@1@m0".to_vec(), sequence.to_be_bytes().to_vec(), payload];
            self.fixture.decoders.deliver_to_pod(&self.pod, vec![PodMessage { connection, frames }]);
        }

        /// Attaches the listener, and waits until all messages so far are applied.
        fn attach(&self) {
            self.fixture.decoders.deliver(&self.listener, Delivery::AttachToPod);
            self.wait();
        }

        /// Waits until all deliveries so far are handled and applied.
        fn wait(&self) {
            let (done, is_done) = bounded(1);
            let written = Delivery::Written(Box::new(move || done.send(()).expect("the test waits")));
            self.fixture.decoders.deliver(&self.listener, written);
            is_done.recv_timeout(PATIENCE).expect("all is written");
        }

        /// Publishes two messages. The first fills the pod's limit of unwritten bytes, and the second waits after it while
        /// the writer is blocked.
        fn publish_a_queue(&self, last: ConnectionId) {
            self.publish(FIRST, 1, chain_payload(1 << 40, 40_000));
            self.publish(last, 2, payload(2));
        }

        fn state(&self) -> (Option<u64>, Trust, ConnectionStatus) {
            (self.listener.last_sequence(), self.listener.trust(RANK), self.listener.connection())
        }
    }

    #[test]
    fn a_rank_of_a_pod_is_degraded_from_a_lost_connection_on_whatever_is_queued_before() {
        let bound = BoundPod::new();
        bound.attach();
        bound.publish(FIRST, 0, payload(1));
        bound.wait();
        assert_eq!(bound.state(), (Some(0), Trust::Exact, ConnectionStatus::Connected));
        let gate = bound.fixture.models[0].gate.lock();
        bound.publish_a_queue(FIRST);
        bound.fixture.decoders.connection_lost(FIRST);
        assert_eq!((bound.listener.last_sequence(), bound.listener.trust(RANK)), (Some(0), Trust::Degraded), "at once");
        drop(gate);
        bound.wait();
        assert_eq!(bound.state(), (Some(2), Trust::Degraded, ConnectionStatus::Disconnected));
        bound.publish(SECOND, 3, encode_batch(3.0, &[EngineEvent::Cleared], None, Encoding::Map));
        bound.wait();
        assert_eq!(bound.state(), (Some(3), Trust::Exact, ConnectionStatus::Connected));
    }

    #[test]
    fn a_lost_connection_of_a_pod_that_publishes_over_another_one_leaves_no_lasting_doubt() {
        let bound = BoundPod::new();
        bound.attach();
        bound.publish(FIRST, 0, payload(1));
        bound.wait();
        let gate = bound.fixture.models[0].gate.lock();
        bound.publish_a_queue(SECOND);
        bound.fixture.decoders.connection_lost(FIRST);
        assert_eq!((bound.listener.last_sequence(), bound.listener.trust(RANK)), (Some(0), Trust::Degraded), "at once");
        drop(gate);
        bound.publish(SECOND, 3, encode_batch(3.0, &[EngineEvent::Cleared], None, Encoding::Map));
        bound.wait();
        assert_eq!(bound.state(), (Some(3), Trust::Exact, ConnectionStatus::Connected));
    }

    #[test]
    fn a_rank_whose_connection_was_lost_before_its_registration_is_degraded() {
        let bound = BoundPod::new();
        bound.publish(FIRST, 0, payload(1));
        let pending = bound.fixture.decoders.pending_registrations();
        pending.recv_timeout(PATIENCE).expect("a pending registration");
        bound.fixture.decoders.connection_lost(FIRST);
        let queues = &bound.fixture.decoders.queues;
        wait_for("the loss is taken", PATIENCE, || (queues.entries(0) == 0).then_some(()));
        bound.attach();
        assert_eq!(bound.state(), (Some(0), Trust::Degraded, ConnectionStatus::Disconnected));
        bound.publish(SECOND, 1, encode_batch(1.0, &[EngineEvent::Cleared], None, Encoding::Map));
        bound.wait();
        assert_eq!(bound.state(), (Some(1), Trust::Exact, ConnectionStatus::Connected));
    }

    #[test]
    fn messages_dropped_after_those_that_waited_for_the_registration_degrade_a_rank_at_once() {
        let bound = BoundPod::new();
        bound.publish(FIRST, 0, payload(1));
        bound.attach();
        assert_eq!(bound.state(), (Some(0), Trust::Exact, ConnectionStatus::Connected));
        let dropped = Work::Pod { pod: Arc::clone(&bound.pod), messages: messages(1) };
        let notice = dropped.into_notice(NoticePosition::Last);
        assert!(matches!(notice, Work::PodDropped { .. }));
        assert_eq!(bound.listener.trust(RANK), Trust::Degraded);
    }

    #[test]
    fn a_flood_of_one_pod_loses_no_message_of_the_others() {
        let message_bytes = queued_bytes(&vec![vec![0; 100]]);
        let decoders = Decoders::detached(1_000 * message_bytes);
        let (flood, others) = (pod("flood"), ["a", "b", "c"].map(pod));
        (0..20).for_each(|_| decoders.deliver_to_pod(&flood, messages(100)));
        for _ in 0..20 {
            others.iter().for_each(|other| decoders.deliver_to_pod(other, messages(10)));
        }
        assert!(decoders.queue_bytes() <= 1_000 * message_bytes);
        let (mut queued, mut notices) = ([0, 0], 0);
        while let Some(work) = decoders.take_queued() {
            match work {
                Work::Pod { pod, messages } => queued[usize::from(Arc::ptr_eq(&pod, &flood))] += messages.len(),
                Work::PodDropped { pod, .. } => {
                    assert_eq!(pod.name, flood.name, "only the flood loses messages");
                    notices += 1;
                }
                _ => panic!("nothing else was delivered"),
            }
        }
        assert_eq!(queued[0], 3 * 20 * 10, "no other pod has lost any");
        assert!((1..=400).contains(&queued[1]), "{queued:?}");
        assert_eq!(notices, 1);
    }

    #[test]
    fn a_lost_connection_is_handled_behind_the_messages_that_arrived_over_it() {
        let decoders = Decoders::detached(1 << 20);
        let (busy, idle) = (pod("busy"), pod("idle"));
        decoders.deliver_to_pod(&busy, messages(1));
        decoders.connection_lost(ConnectionId(1));
        decoders.deliver_to_pod(&idle, messages(1));
        let mut handled = Vec::new();
        while let Some(work) = decoders.take_queued() {
            handled.push(match work {
                Work::Pod { pod, .. } => (pod.name.instance.to_string(), "message"),
                Work::ConnectionLost(ConnectionId(1), scope, _) => {
                    assert_ne!(scope.contains(&busy.name), scope.contains(&idle.name));
                    let of = if scope.contains(&busy.name) { &busy } else { &idle };
                    (of.name.instance.to_string(), "lost")
                }
                _ => panic!("nothing else was delivered"),
            });
        }
        let of = |name: &str| handled.iter().filter(|(pod, _)| pod == name).map(|(_, what)| *what).collect::<Vec<_>>();
        assert_eq!(of("busy"), ["message", "lost"]);
        assert_eq!(of("idle"), ["lost", "message"]);
    }
}
