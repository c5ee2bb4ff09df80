//! The part of a plan that rebuilds instances next to the registered ones.

use flash_indexer_sim::Random;

use crate::action::{Action, FaultKind, RepairSource, RepairStep};

/// Generates the steps of rebuilds.
pub(crate) struct RepairPlan {
    random: Random,
    is_used: bool,
    /// A separate random sequence: it does not change the steps of rebuilds.
    removals: Random,
    has_removals: bool,
    /// Whether dumps of peers are restored regardless of comparisons.
    is_uncompared: bool,
}

impl RepairPlan {
    /// Decides whether the services of a seed rebuild instances. `restores` is whether they restore dumps when they start.
    pub(crate) fn generate(seed: u64, restores: bool) -> Self {
        let mut random = Random::new(seed ^ 0x51f1_ed5e_ed00_0004);
        let is_used = random.one_in(4);
        let mut removals = Random::new(seed ^ 0x51f1_ed5e_ed00_0005);
        let is_uncompared = removals.one_in(2);
        Self { random, is_used, removals, has_removals: is_used || restores, is_uncompared }
    }

    /// A removal of a block whose next one stays, if there is one. A restored rank must not hold it.
    pub(crate) fn removal(&mut self, engines: usize) -> Option<Action> {
        (self.has_removals && self.removals.one_in(8)).then(|| {
            let (engine, choice) = (self.removals.within(0..engines), self.removals.next());
            Action::RemoveFollowed { engine, choice }
        })
    }

    /// The next step, if there is one.
    pub(crate) fn action(&mut self, services: usize, engines: usize) -> Option<(Action, Option<FaultKind>)> {
        if !self.is_used {
            return None;
        }
        let (service, engine) = (self.random.within(0..services), self.random.within(0..engines));
        let step = match self.random.within(0..6) {
            0..2 => {
                let source = match self.random.one_in(3) {
                    true => RepairSource::Engine,
                    false if self.is_uncompared => RepairSource::UncomparedPeer,
                    false => RepairSource::Peer,
                };
                RepairStep::Begin { service, engine, source }
            }
            2..4 => RepairStep::Fill { service },
            4 => RepairStep::Exchange { service },
            _ => return None,
        };
        Some((Action::Repair(step), Some(FaultKind::Repair)))
    }
}
