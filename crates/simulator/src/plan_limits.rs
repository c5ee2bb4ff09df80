//! The part of a plan that changes the limits of the tenant.

use flash_indexer_sim::Random;

use crate::action::{Action, FaultKind, LimitsStep, Quotas};

/// Generates the steps of changing limits.
pub(crate) struct LimitsPlan {
    random: Random,
    /// Whether the services have limits files.
    pub(crate) is_used: bool,
    limits_ranks: bool,
}

impl LimitsPlan {
    /// Decides whether the services of a seed have limits files. `limits_ranks` is whether the files may limit ranks.
    pub(crate) fn generate(seed: u64, limits_ranks: bool) -> Self {
        let mut random = Random::new(seed ^ 0x51f1_ed5e_ed00_0006);
        let is_used = random.one_in(5);
        Self { random, is_used, limits_ranks }
    }

    /// The next step, if there is one.
    pub(crate) fn action(&mut self, services: usize) -> Option<(Action, Option<FaultKind>)> {
        if !self.is_used {
            return None;
        }
        let service = self.random.within(0..services);
        let step = match self.random.within(0..16) {
            0 => LimitsStep::Write { service, quotas: self.quotas() },
            1..3 => LimitsStep::Reload { service },
            3..5 => LimitsStep::Compare { service },
            _ => return None,
        };
        Some((Action::Limits(step), Some(FaultKind::Limits)))
    }

    fn quotas(&mut self) -> Option<Quotas> {
        let held_blocks = self.random.one_in(2).then(|| self.random.within(1..100));
        let ranks = self.random.one_in(2).then(|| self.random.within(1..6)).filter(|_| self.limits_ranks);
        (!self.random.one_in(6)).then_some(Quotas { held_blocks, ranks })
    }
}
