//! Actions and faults of a simulation.

use crate::engine::PublisherFault;
use crate::store::StoreFault;

/// Kinds of faults. A plan has a random subset of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// The network, or a publisher whose queue is full, loses live messages.
    Loss,
    /// A live message arrives twice.
    Duplicate,
    /// A live message arrives damaged.
    Damage,
    /// Connections are lost and come back.
    Disconnect,
    /// An engine restarts.
    EngineRestart,
    /// A service restarts.
    ServiceRestart,
    /// Replay endpoints stay silent, answer partly, or return messages that were not requested.
    Replay,
    /// An event is of an unknown type.
    UnknownEvent,
    /// A payload is not a batch.
    Unreadable,
    /// A writer panics.
    WriterPanic,
    /// A decoder panics.
    DecoderPanic,
    /// Queues are small.
    SmallQueue,
    /// Messages have more blocks than a writer applies in one turn.
    Large,
    /// The wall clock is set forwards or backwards.
    ClockStep,
    /// Ranks are unregistered and registered again.
    Churn,
    /// The shared store loses calls, entries or nodes.
    Store,
    /// Engines move, and the lists of discovery sources change.
    Discovery,
    /// Instances are rebuilt, by a peer's state or the engine's replay, next to the registered ones.
    Repair,
    /// Limits of tenants change.
    Limits,
}

impl FaultKind {
    /// Every kind.
    pub(crate) const ALL: [Self; 19] = [
        Self::Loss,
        Self::Duplicate,
        Self::Damage,
        Self::Disconnect,
        Self::EngineRestart,
        Self::ServiceRestart,
        Self::Replay,
        Self::UnknownEvent,
        Self::Unreadable,
        Self::WriterPanic,
        Self::DecoderPanic,
        Self::SmallQueue,
        Self::Large,
        Self::ClockStep,
        Self::Churn,
        Self::Store,
        Self::Discovery,
        Self::Repair,
        Self::Limits,
    ];

    /// Whether its steps have their own random sequence: it does not change the other steps of a seed.
    pub(crate) fn has_own_sequence(self) -> bool {
        matches!(self, Self::Store | Self::Discovery | Self::Repair | Self::Limits)
    }
}

/// A reply to a replay request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// Every message that the engine still has, and the end.
    Whole,
    /// Only the end.
    Empty,
    /// The first messages, without the end.
    CutOff,
    /// Messages are missing in the middle.
    Gaps,
    /// The last messages are missing, and the end is there.
    NoTail,
    /// The messages are in reverse order.
    Reversed,
    /// Each message is included twice.
    Repeated,
    /// Frames that are not a message.
    Garbage,
    /// Messages from the start of the buffer on, regardless of the request.
    FromStart,
}

impl ReplyKind {
    /// Replies other than the whole one.
    pub(crate) const FAULTS: [Self; 8] = [
        Self::Empty,
        Self::CutOff,
        Self::Gaps,
        Self::NoTail,
        Self::Reversed,
        Self::Repeated,
        Self::Garbage,
        Self::FromStart,
    ];
}

/// A change of the engines that discovery sources name, or of an engine's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscoveryChange {
    /// The source of a service names an engine at its present address.
    Name { service: usize, engine: usize },
    /// The source of a service no longer names an engine.
    LeaveOut { service: usize, engine: usize },
    /// An engine moves to another address, with or without its caches.
    Move { engine: usize, restarts: bool },
    /// The source of a service fails until its next report.
    Fail { service: usize },
}

/// Origin of the blocks of a rebuilt instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepairSource {
    /// The dump of the other service, if a comparison finds a rank better there.
    Peer,
    /// The dump of the other service, which may have become less trusted since a comparison.
    UncomparedPeer,
    /// The engine's replay.
    Engine,
}

/// A step of rebuilding an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepairStep {
    /// A service opens a second copy of an engine's instance.
    Begin { service: usize, engine: usize, source: RepairSource },
    /// The copy receives its blocks.
    Fill { service: usize },
    /// The copy replaces the registered instance.
    Exchange { service: usize },
}

/// Limits of a tenant; none is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quotas {
    /// Blocks that its ranks hold together.
    pub(crate) held_blocks: Option<usize>,
    /// Registered ranks.
    pub(crate) ranks: Option<usize>,
}

/// A step of changing the limits of the tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitsStep {
    /// The limits file of a service is written; none is an invalid file.
    Write { service: usize, quotas: Option<Quotas> },
    /// A service reads its file again.
    Reload { service: usize },
    /// A service compares the held blocks with their limit.
    Compare { service: usize },
}

/// One action of a plan. Engines and services are given by their numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// An engine serves a prompt on a rank.
    Serve { engine: usize, rank: usize, prompt: usize },
    /// An engine serves many prompts.
    Burst { engine: usize, prompts: usize },
    /// An engine removes a block from the middle of a prompt.
    Remove { engine: usize, rank: usize, prompt: usize, depth: usize },
    /// An engine removes a block and keeps the next one. `choice` chooses the block.
    RemoveFollowed { engine: usize, choice: u64 },
    /// An engine clears the cache of a rank.
    Clear { engine: usize, rank: usize },
    /// An engine publishes something odd.
    Odd { engine: usize, rank: usize, prompt: usize, oddity: PublisherFault },
    /// An engine restarts. This number of messages on their way arrives.
    RestartEngine { engine: usize, kept: usize },
    /// Live messages arrive at a service.
    Deliver { service: usize, engine: usize, count: usize },
    /// Live messages are lost on their way to a service.
    Lose { service: usize, engine: usize, count: usize, is_newest: bool },
    /// The next live message is repeated.
    Duplicate { service: usize, engine: usize },
    /// The next live message is cut off.
    Corrupt { service: usize, engine: usize },
    /// The next live message makes a decoder panic, or only its listener.
    PanicDecoder { service: usize, engine: usize, is_whole_thread: bool },
    /// A connection is lost. This number of messages on their way arrives.
    Disconnect { service: usize, engine: usize, kept: usize },
    /// A connection comes back.
    Connect { service: usize, engine: usize },
    /// An engine answers a service's replay request. `cut` chooses where the reply is incomplete.
    Answer { service: usize, engine: usize, kind: ReplyKind, cut: u64 },
    /// Parts of a reply arrive.
    DeliverReply { service: usize, engine: usize, count: usize },
    /// Threads of a service run some steps.
    Run { service: usize, steps: usize },
    /// Threads of a service run until none has work.
    Settle { service: usize },
    /// Everything on its way arrives and is answered, and all threads run until none has work.
    Flow,
    /// Time passes.
    PassTime { ms: u64 },
    /// Time passes while all threads run. Engines are connected and silent: nothing arrives.
    Silence { seconds: u64 },
    /// The wall clock is set.
    StepClock { ms: i64 },
    /// A rank, or all ranks of an engine's instance, are unregistered.
    Unregister { service: usize, engine: usize, rank: Option<usize> },
    /// All ranks of an engine are registered.
    Register { service: usize, engine: usize },
    /// A service stops and starts, with its streams held if it is to recover from a peer.
    RestartService { service: usize, is_held: bool },
    /// A recovering service reads the dump of another one.
    ReadDump { service: usize },
    /// A recovering service restores the dump, or only a part of it, and releases its streams.
    Recover { service: usize, is_cut: bool },
    /// The shared store fails.
    Store(StoreFault),
    /// A discovery source reports, or an engine moves.
    Discovery(DiscoveryChange),
    /// An instance is rebuilt.
    Repair(RepairStep),
    /// Limits change.
    Limits(LimitsStep),
}
