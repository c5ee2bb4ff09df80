//! Counts of the work of simulations.

/// Counts of a simulation's work, to show that the simulation was not empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Answers compared with the engine.
    pub answers: u64,
    /// Of these, answers of exact ranks.
    pub exact_answers: u64,
    /// Messages that engines published.
    pub messages: u64,
    /// Ranks that had to be exact without a clear after the faults stopped, and were.
    pub healed_ranks: u64,
    /// Ranks that were exact after a clear.
    pub cleared_ranks: u64,
    /// Indexes replaced after a panic.
    pub panics: u64,
    /// Messages dropped because a queue was full.
    pub dropped: u64,
    /// Messages returned by replays.
    pub replayed: u64,
    /// Recoveries from a peer's dump.
    pub imports: u64,
    /// Answers about ranks of other services, found in the shared store.
    pub remote_answers: u64,
    /// Of these, answers of exact ranks.
    pub exact_remote_answers: u64,
    /// Ranks of other services that answers had to include as their engines hold them after the faults stopped, and did.
    pub healed_remote_ranks: u64,
    /// Instances that were rebuilt.
    pub rebuilds: u64,
    /// Ranks that discovery unregistered, because they moved or their source no longer named them.
    pub discovered_leaves: u64,
    /// Ranks that a limit refused.
    pub refused_ranks: u64,
    /// Blocks that a limit refused.
    pub refused_blocks: u64,
}

impl std::ops::AddAssign for Coverage {
    fn add_assign(&mut self, other: Self) {
        self.answers += other.answers;
        self.exact_answers += other.exact_answers;
        self.messages += other.messages;
        self.healed_ranks += other.healed_ranks;
        self.cleared_ranks += other.cleared_ranks;
        self.panics += other.panics;
        self.dropped += other.dropped;
        self.replayed += other.replayed;
        self.imports += other.imports;
        self.remote_answers += other.remote_answers;
        self.exact_remote_answers += other.exact_remote_answers;
        self.healed_remote_ranks += other.healed_remote_ranks;
        self.rebuilds += other.rebuilds;
        self.discovered_leaves += other.discovered_leaves;
        self.refused_ranks += other.refused_ranks;
        self.refused_blocks += other.refused_blocks;
    }
}
