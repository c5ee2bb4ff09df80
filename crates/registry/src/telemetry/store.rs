//! State of the shared store as metrics.

use std::fmt;

use flash_indexer_redis::{PublisherReport, StoreReport};
use flash_indexer_telemetry::metrics::{Families, StateSection};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// State of the shared store.
#[derive(Debug)]
pub(crate) struct StoreState(pub StoreReport);

impl StateSection for StoreState {
    fn encode(&self, families: &mut Families<'_>) -> fmt::Result {
        let report = &self.0;
        let gauge = |value: usize| ConstGauge::new(value as i64);
        let PublisherReport {
            published_ranks,
            unfinished_ranks,
            waiting_changes,
            written,
            batches,
            failed_batches,
            rewrites,
            overflows,
            invalid_values_read,
            invalid_values_removed,
            largest_step: _,
        } = report.published;
        let help = "Whether the shared index can be asked and written to";
        families.one("store_connected", help, &gauge(report.is_connected.into()))?;
        families.one("store_published_ranks", "Ranks that this replica publishes", &gauge(published_ranks))?;
        let help = "Of those, the ones that are not written as a whole yet";
        families.one("store_unfinished_ranks", help, &gauge(unfinished_ranks))?;
        let help = "Changes that wait to be written to the shared index";
        families.one("store_waiting_changes", help, &gauge(waiting_changes))?;
        families.one("store_written_changes", "Changes written to the shared index", &ConstCounter::new(written))?;
        families.one("store_batches", "Batches written to the shared index", &ConstCounter::new(batches))?;
        families.one("store_failed_batches", "Batches that failed", &ConstCounter::new(failed_batches))?;
        let help = "Times that a part of the shared index was not as it was left and was written anew";
        families.one("store_rewrites", help, &ConstCounter::new(rewrites))?;
        let help = "Times that too many changes of a rank, or for a part of the shared index, waited, so that it is written as a whole";
        families.one("store_overflows", help, &ConstCounter::new(overflows))?;
        let help = "Values in the shared index that no replica writes, as queries met them: they count as missing";
        families.one("store_invalid_values_read", help, &ConstCounter::new(invalid_values_read))?;
        let help = "Such values that this replica has removed";
        families.one("store_invalid_values_removed", help, &ConstCounter::new(invalid_values_removed))?;
        let help = "Panics of tasks of the shared index, which start again";
        families.one("store_task_panics", help, &ConstCounter::new(report.task_panics))
    }
}
