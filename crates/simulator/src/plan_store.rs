//! The part of a plan that concerns the shared store.

use flash_indexer_sim::Random;

use crate::action::{Action, FaultKind};
use crate::engine::EngineSpec;
use crate::store::{CallFate, StoreFault};

/// Services that share a store.
pub(crate) const SHARING_SERVICES: usize = 2;

/// Generates the steps of a store.
pub(crate) struct SharingPlan {
    random: Random,
    /// Number of nodes; none if the services share no store.
    pub(crate) store_nodes: Option<usize>,
    has_faults: bool,
}

impl SharingPlan {
    /// Decides whether the services of a seed share a store, and which engine is registered where.
    pub(crate) fn generate(seed: u64, engines: &mut [EngineSpec]) -> Self {
        let mut random = Random::new(seed ^ 0x51f1_ed5e_ed00_0002);
        let store_nodes = random.one_in(5).then(|| random.within(1..4));
        let has_faults = !random.one_in(4);
        if store_nodes.is_some() {
            for engine in engines {
                engine.service = (!random.one_in(5)).then(|| random.within(0..SHARING_SERVICES));
            }
        }
        Self { random, store_nodes, has_faults }
    }

    /// The next step, if there is one.
    pub(crate) fn action(&mut self) -> Option<(Action, Option<FaultKind>)> {
        let nodes = self.store_nodes?;
        match self.random.within(0..16) {
            0..2 if self.has_faults => Some((Action::Store(self.fault(nodes)), Some(FaultKind::Store))),
            2..5 => Some((Action::PassTime { ms: self.random.within(10..1_500) as u64 }, None)),
            _ => None,
        }
    }

    fn fault(&mut self, nodes: usize) -> StoreFault {
        let (node, service) = (self.random.within(0..nodes), self.random.within(0..SHARING_SERVICES));
        match self.random.within(0..18) {
            0..4 => {
                let fate = [CallFate::Lost, CallFate::Unanswered, CallFate::Late][self.random.within(0..3)];
                StoreFault::Calls { service, fate, count: self.random.within(1..4) }
            }
            4 => StoreFault::Partition { service, is_reachable: false },
            5..7 => StoreFault::Partition { service, is_reachable: true },
            7 => StoreFault::Suspend { node, is_running: false },
            8..10 => StoreFault::Suspend { node, is_running: true },
            10 => StoreFault::Slow { node, ms: self.random.within(0..1_500) as u64 },
            11 => StoreFault::Slow { node, ms: self.random.within(0..40) as u64 },
            12..14 => StoreFault::Replicate { node },
            14 => StoreFault::FailOver { node },
            15 => StoreFault::Empty { node },
            16 => StoreFault::Evict { node, keys: self.random.within(1..6) },
            _ => StoreFault::StepClock { node, ms: self.random.within(0..8_000) as i64 - 3_000 },
        }
    }
}
