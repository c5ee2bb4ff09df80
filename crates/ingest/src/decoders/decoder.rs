//! A decoder thread: its queue, its listeners' decoders and their timers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use flash_indexer_types::LossReason;
use flash_indexer_wire::{StreamPosition, StreamTrust};
use rustc_hash::FxHashMap;

use super::delivery::{Delivery, QueueKey, TURN_BYTES_MAX, Work};
use crate::bound_pods::{OpenConnections, PendingRegistration, PodStreams};
use crate::listener::{Listener, NoticeKind};
use crate::listener_decoder::ListenerDecoder;
use crate::resume_point::{ReadAt, in_parts};
use crate::writer::{Reservation, Writers};
use crate::{listener_span, log_listener};
use flash_indexer_queues::{ProcessorTurn, Queues, TakenEntry};
use flash_indexer_telemetry::clock::Clock;
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_telemetry::supervision::{Step, Steps, ThreadKind, Watch, guarded};

/// Limit of the messages that the streams of one decoder buffer while a gap before them is replayed, in bytes.
const WAITING_BYTES_MAX: usize = 512 << 20;
/// Limit of the copies of blocks with a named manager, of all streams of one decoder, in bytes.
const MANAGED_BYTES_MAX: usize = 256 << 20;
/// Changes are sent to the writer once they stem from this many bytes of messages, and at the end of a delivery.
const BATCH_BYTES: usize = 1 << 20;

/// State of a decoder thread.
pub(super) struct Decoder {
    number: usize,
    queues: Arc<Queues<QueueKey, Work>>,
    pub(super) listener_decoders: FxHashMap<u64, ListenerDecoder>,
    pub(super) pods: PodStreams,
    /// Requests registrations of pods.
    pub(super) registration_sender: Sender<PendingRegistration>,
    /// Deadlines of the streams, with their listeners.
    pub(super) timers: BTreeSet<(Instant, u64)>,
    /// Timers that are due, of listeners with earlier work in their queues, by queue.
    deferred_timers: FxHashMap<QueueKey, Vec<(Instant, u64)>>,
    /// Bytes of the budget that the current work takes until its changes are written.
    reservation: Option<Reservation>,
    /// Bytes of events that may be decoded in this turn.
    turn_bytes_left: usize,
    /// Bytes of messages that all streams buffer after gaps.
    pub(super) waiting_bytes: usize,
    /// Bytes of the copies of blocks with a named manager, of all streams.
    pub(super) managed_bytes: usize,
    managed_bytes_max: usize,
    /// The listener whose delivery is being handled. While its decoder is in use, `listener_decoders` does not contain it.
    pub(super) current: Option<Arc<Listener>>,
    processor_turn: ProcessorTurn,
    pub(super) writers: Arc<Writers>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

impl Decoder {
    pub(super) fn new(
        number: usize,
        queues: Arc<Queues<QueueKey, Work>>,
        registration_sender: Sender<PendingRegistration>,
        connections: Arc<OpenConnections>,
        writers: Arc<Writers>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        Self {
            number,
            queues,
            listener_decoders: FxHashMap::default(),
            pods: PodStreams::new(connections),
            registration_sender,
            timers: BTreeSet::new(),
            deferred_timers: FxHashMap::default(),
            reservation: None,
            turn_bytes_left: TURN_BYTES_MAX,
            waiting_bytes: 0,
            managed_bytes: 0,
            managed_bytes_max: MANAGED_BYTES_MAX,
            current: None,
            processor_turn: ProcessorTurn::new(Arc::clone(writers.processor_turns())),
            writers,
            metrics,
            clock,
        }
    }

    /// Bytes that the last turn has decoded.
    fn turn_bytes(&self) -> usize {
        TURN_BYTES_MAX.saturating_sub(self.turn_bytes_left)
    }

    /// Handles one entry of the queues, then the timers that are due.
    fn handle_taken(&mut self, taken: TakenEntry<QueueKey, Work>) -> Step {
        let mut step = Step::Worked;
        self.turn_bytes_left = TURN_BYTES_MAX;
        match taken {
            TakenEntry::Work { key, work, reservation } => {
                self.reservation = Some(reservation);
                if let Some(timers) = self.deferred_timers.remove(&key) {
                    self.timers.extend(timers);
                }
                self.handle_work(work);
            }
            TakenEntry::Timeout => step = Step::Idle,
            TakenEntry::Stopped => return Step::Ended,
        }
        let now = self.clock.now();
        if self.timers.first().is_some_and(|&(due, _)| due <= now) {
            step = Step::Worked;
            self.run_timers(now);
        }
        step
    }

    fn handle_work(&mut self, work: Work) {
        match work {
            Work::Delivery { listener, delivery } => {
                if !self.writers.are_stopping() {
                    self.current = Some(Arc::clone(&listener));
                    self.handle(&listener, delivery);
                    self.current = None;
                }
            }
            Work::Rest { listener, reservation } => {
                if !self.writers.are_stopping() {
                    self.reservation = reservation;
                    self.with_decoder(&listener, |decoder, _| {
                        decoder.is_rest_queued = false;
                        decoder.execute();
                    });
                    self.report_changed_block_size(&listener);
                }
            }
            Work::Pod { pod, messages } => {
                if !self.writers.are_stopping() {
                    self.route_messages(&pod, messages);
                }
            }
            Work::PodDropped { pod, runs, last } => self.record_dropped(&pod.name, &runs, &last),
            Work::ConnectionLost(connection, pods, notices) => self.disconnect_pods(connection, &pods, notices),
            Work::Refused(name, dp_rank, refusal) => self.refuse(&name, dp_rank, &refusal),
        }
    }

    /// Runs the timers that are due at `now`. A message that was queued before a deadline meets it, however long it waits
    /// in the queue.
    fn run_timers(&mut self, now: Instant) {
        while let Some(&(due, id)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            let Some(listener) = self.listener_decoders.get(&id).map(|decoder| Arc::clone(decoder.listener())) else {
                continue;
            };
            let key = QueueKey::of(&listener);
            if self.queues.queued_since(&key).is_some_and(|at| at <= due) {
                self.deferred_timers.entry(key).or_default().push((due, id));
            } else {
                let now = self.clock.now();
                self.with_decoder(&listener, |decoder, _| decoder.tick(now));
            }
        }
    }

    fn handle(&mut self, listener: &Arc<Listener>, delivery: Delivery) {
        let now = self.clock.now();
        #[cfg(any(test, feature = "fault-injection"))]
        delivery.inject_fault();
        match delivery {
            Delivery::Restart(replay) => self.restart(listener, replay, now),
            Delivery::Live(messages) => {
                self.decode_each(listener, messages, |decoder, frames| decoder.live(frames, now))
            }
            Delivery::Dropped { run, last } => {
                listener.receive_notice(NoticeKind::Dropped, run);
                self.with_decoder(listener, |decoder, _| decoder.dropped(run, last, now));
            }
            Delivery::Paused { run, shown_from } => {
                listener.receive_notice(NoticeKind::Dropped, run);
                self.with_decoder(listener, |decoder, _| decoder.paused(run, shown_from, now));
            }
            Delivery::Replayed { attempt, messages } => {
                self.decode_each(listener, messages, |decoder, frames| decoder.replayed(attempt, frames, now));
            }
            Delivery::ReplayFailed { attempt, why } => {
                self.with_decoder(listener, |decoder, _| decoder.replay_failed(attempt, why, now));
            }
            Delivery::AttachToPod => self.attach(listener, now),
            Delivery::AttachShadow => self.attach_shadow(listener, now),
            Delivery::PromoteShadow => self.pods.promote_shadow(listener),
            Delivery::Connected => self.with_decoder(listener, |decoder, _| decoder.connected(now)),
            Delivery::Disconnected(number) => {
                listener.receive_notice(NoticeKind::Disconnected, number);
                self.with_decoder(listener, |decoder, _| decoder.connection_lost(number));
            }
            Delivery::Release(done) => {
                // `done` follows all messages that were held.
                self.turn_bytes_left = usize::MAX;
                self.with_decoder(listener, |decoder, _| decoder.release(now));
                self.when_written(listener, move || done.send(()));
            }
            Delivery::IgnoreRank(dp_rank, done) => {
                self.with_decoder(listener, |decoder, _| decoder.ignore_rank(dp_rank));
                self.when_written(listener, done);
            }
            Delivery::ResumeRank(dp_rank) => self.with_decoder(listener, |decoder, _| decoder.resume_rank(dp_rank)),
            Delivery::Read { dp_rank, at: ReadAt::Now, detail, reader } => {
                let from_start = || {
                    ListenerDecoder::new(Arc::clone(listener), Arc::clone(&self.metrics)).resume_point(dp_rank, detail)
                };
                let resume_point = self
                    .listener_decoders
                    .get(&listener.id)
                    .map_or_else(from_start, |decoder| decoder.resume_point(dp_rank, detail));
                self.writers.read(listener, in_parts(reader, resume_point));
            }
            Delivery::Read { dp_rank, at: ReadAt::Message(sequence), detail, reader } => {
                if self.listener_decoders.contains_key(&listener.id) {
                    self.with_decoder(listener, |decoder, _| decoder.read_at(sequence, dp_rank, detail, reader));
                }
            }
            Delivery::RestoreDecoderState(dp_rank, decoder_state) => {
                self.with_decoder(listener, |decoder, _| decoder.restore_decoder_state(dp_rank, decoder_state));
            }
            Delivery::Written(done) => self.when_written(listener, done),
            Delivery::Retire(done) => {
                let mut position = None;
                self.with_decoder(listener, |decoder, _| position = Some(decoder.retire()));
                self.remove_decoder(listener.id);
                self.pods.detach(listener);
                let position = position.unwrap_or(START);
                self.when_written(listener, move || done(position));
            }
        }
    }

    /// Decodes messages one after the other. If one panics, the rest are decoded by the restarted decoder.
    pub(super) fn decode_each<M>(
        &mut self,
        listener: &Arc<Listener>,
        messages: Vec<M>,
        take: impl Fn(&mut ListenerDecoder, M),
    ) {
        let mut messages = messages.into_iter();
        while messages.len() > 0 {
            self.with_decoder(listener, |decoder, out| {
                for message in messages.by_ref() {
                    take(decoder, message);
                    if decoder.changed_bytes >= BATCH_BYTES {
                        out.write(decoder);
                    }
                }
            });
        }
    }

    /// Runs a job on the writer thread after all changes so far.
    fn when_written<T>(&self, listener: &Listener, job: impl FnOnce() -> T + Send + 'static) {
        self.writers.run(
            listener,
            Box::new(move || {
                // The receiver may have timed out.
                let _ = job();
            }),
        );
    }

    /// Runs `work` on the decoder of a listener, sends its changes to the writer, and updates timers and byte counts. A
    /// panic restarts this listener alone.
    pub(super) fn with_decoder(
        &mut self,
        listener: &Arc<Listener>,
        work: impl FnOnce(&mut ListenerDecoder, &WriterSender<'_>),
    ) {
        let _span = listener_span!(listener).entered();
        let out = WriterSender { writers: &self.writers, listener, reservation: self.reservation.clone() };
        self.current = Some(Arc::clone(listener));
        let known = self.listener_decoders.remove(&listener.id);
        let mut decoder =
            known.unwrap_or_else(|| ListenerDecoder::new(Arc::clone(listener), Arc::clone(&self.metrics)));
        let (bytes_before, due_before) = (decoder.waiting_bytes(), decoder.wakes_at());
        let managed_before = decoder.managed_bytes();
        let name = std::thread::current();
        let name = name.name().unwrap_or_default();
        decoder.turn_bytes_left = self.turn_bytes_left;
        if guarded(&self.metrics, ThreadKind::Decoder, name, || work(&mut decoder, &out)).is_none() {
            log_listener!(error, **listener, "failed to decode a message: panic in the decoder; restarting the stream");
            listener.require_restart(LossReason::DecoderPanicked);
            self.metrics.listener_restarted();
            decoder = decoder.after_panic(listener.model.ranks_of(listener), self.clock.now());
        }
        self.waiting_bytes = self.waiting_bytes - bytes_before + decoder.waiting_bytes();
        if self.waiting_bytes > WAITING_BYTES_MAX && decoder.waiting_bytes() > 0 {
            let bytes = decoder.waiting_bytes();
            decoder.release_buffered(self.clock.now());
            self.waiting_bytes = self.waiting_bytes - bytes + decoder.waiting_bytes();
        }
        out.write(&mut decoder);
        self.change_managed_bytes(managed_before, decoder.managed_bytes());
        if self.managed_bytes > self.managed_bytes_max {
            let managed = decoder.managed_bytes();
            decoder.forget_managers();
            self.change_managed_bytes(managed, decoder.managed_bytes());
        }
        self.turn_bytes_left = decoder.turn_bytes_left.min(self.turn_bytes_left);
        if decoder.is_interrupted() && !std::mem::replace(&mut decoder.is_rest_queued, true) {
            let rest = Work::Rest { listener: Arc::clone(listener), reservation: self.reservation.clone() };
            self.queues.put_back(&QueueKey::of(listener), self.number, rest);
        }
        if let Some(due) = due_before {
            self.timers.remove(&(due, listener.id));
        }
        self.timers.extend(decoder.wakes_at().map(|due| (due, listener.id)));
        self.listener_decoders.insert(listener.id, decoder);
        self.current = None;
    }

    /// Records a change in the bytes of one stream's copies of blocks with a named manager.
    pub(super) fn change_managed_bytes(&mut self, before: usize, after: usize) {
        self.managed_bytes = self.managed_bytes - before + after;
        self.metrics.managed_bytes_changed(before, after);
    }

    fn remove_decoder(&mut self, id: u64) {
        if let Some(decoder) = self.listener_decoders.remove(&id) {
            self.change_managed_bytes(decoder.managed_bytes(), 0);
            self.waiting_bytes -= decoder.waiting_bytes();
            self.timers.retain(|&(_, other)| other != id);
        }
    }
}

impl Steps for Decoder {
    /// Waits for the next entry of the queues or the next timer, and handles it.
    fn step(&mut self, watch: &Arc<Watch>) -> Step {
        let deadline = self.timers.first().map(|&(due, _)| due);
        // Each count is an engine whose messages wait for its writer.
        let on_park = || self.metrics.limit_reached(Limit::WriterQueue);
        let taken = self.queues.take(self.number, self.turn_bytes(), deadline, on_park);
        watch.begin(None);
        let step = watch.guarded(|| self.handle_taken(taken)).unwrap_or_else(|| {
            self.restart_all();
            Step::Worked
        });
        self.reservation = None;
        watch.end();
        if step == Step::Worked {
            self.processor_turn.yield_if_over();
        }
        step
    }
}

/// Position of a stream without any message.
const START: StreamPosition = StreamPosition { cursor: None, epoch: 1, trust: StreamTrust::Cold };

/// Sends the changes of a listener to its writer.
pub(super) struct WriterSender<'a> {
    writers: &'a Writers,
    listener: &'a Arc<Listener>,
    reservation: Option<Reservation>,
}

impl WriterSender<'_> {
    fn write(&self, decoder: &mut ListenerDecoder) {
        if decoder.is_interrupted() {
            return;
        }
        let changes = decoder.changes();
        if !changes.is_empty() {
            self.writers.write(self.listener, changes, self.reservation.clone());
        }
    }
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
