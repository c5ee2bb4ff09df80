//! The part of a plan that rebuilds instances beside the registered ones.

use flash_indexer_sim::Random;

use crate::action::{Action, FaultKind, RepairSource, RepairStep};

/// Generates the steps of rebuilds.
pub(crate) struct RepairPlan {
    random: Random,
    is_used: bool,
}

impl RepairPlan {
    /// Decides whether the services of a seed rebuild instances.
    pub(crate) fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x51f1_ed5e_ed00_0004);
        let is_used = random.one_in(4);
        Self { random, is_used }
    }

    /// The next step, if there is one.
    pub(crate) fn action(&mut self, services: usize, engines: usize) -> Option<(Action, Option<FaultKind>)> {
        if !self.is_used {
            return None;
        }
        let (service, engine) = (self.random.within(0..services), self.random.within(0..engines));
        let step = match self.random.within(0..6) {
            0..2 => {
                let source = if self.random.one_in(3) { RepairSource::Engine } else { RepairSource::Peer };
                RepairStep::Begin { service, engine, source }
            }
            2..4 => RepairStep::Fill { service },
            4 => RepairStep::Exchange { service },
            _ => return None,
        };
        Some((Action::Repair(step), Some(FaultKind::Repair)))
    }
}
