//! Changes of limits, and their reload.

use crate::action::{LimitsStep, Quotas};
use crate::world::World;

impl World {
    /// Makes one step of changing limits.
    pub(crate) fn change_limits(&mut self, step: LimitsStep) -> Result<(), String> {
        match step {
            LimitsStep::Write { service, quotas } => self.limits[service].write(quotas),
            LimitsStep::Reload { service } => self.services[service].ranks_max = self.limits[service].reload()?.ranks,
            LimitsStep::Compare { service } => self.services[service].indexer.check_tenants(),
        }
        Ok(())
    }

    /// Removes every limit.
    pub(crate) fn end_limits(&mut self) -> Result<(), String> {
        for service in 0..self.limits.len() {
            self.change_limits(LimitsStep::Write { service, quotas: Some(Quotas::default()) })?;
            self.change_limits(LimitsStep::Reload { service })?;
            self.change_limits(LimitsStep::Compare { service })?;
        }
        Ok(())
    }
}
