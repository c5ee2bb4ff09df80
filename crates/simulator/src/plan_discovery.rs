//! The part of a plan that concerns discovery.

use flash_indexer_sim::Random;

use crate::action::{Action, DiscoveryChange, FaultKind};

/// Generates the steps of discovery sources and of engines that move.
pub(crate) struct DiscoveryPlan {
    random: Random,
    /// Whether the services discover their engines.
    pub(crate) is_used: bool,
}

impl DiscoveryPlan {
    /// Decides whether the services of a seed discover their engines.
    pub(crate) fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x51f1_ed5e_ed00_0003);
        let is_used = random.one_in(5);
        Self { random, is_used }
    }

    /// The next step, if there is one.
    pub(crate) fn action(&mut self, services: usize, engines: usize) -> Option<(Action, Option<FaultKind>)> {
        if !self.is_used {
            return None;
        }
        let (service, engine) = (self.random.within(0..services), self.random.within(0..engines));
        let change = match self.random.within(0..16) {
            0..3 => DiscoveryChange::Name { service, engine },
            3 => DiscoveryChange::LeaveOut { service, engine },
            4 if self.random.one_in(2) => DiscoveryChange::Move { engine, restarts: self.random.one_in(2) },
            5 => DiscoveryChange::Fail { service },
            6 => return Some((Action::PassTime { ms: self.random.within(100..8_000) as u64 }, None)),
            _ => return None,
        };
        Some((Action::Discovery(change), Some(FaultKind::Discovery)))
    }
}
