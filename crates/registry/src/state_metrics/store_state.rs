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
            rank_overflows: _,
            bucket_overflows: _,
            invalid_values_read,
            invalid_values_removed,
            largest_step: _,
        } = report.published;
        let help = "1 if the shared store can be read and written, otherwise 0";
        families.one("store_connected", help, &gauge(report.is_connected.into()))?;
        families.one("store_published_ranks", "Ranks that this replica publishes", &gauge(published_ranks))?;
        let help = "Published ranks that are not written completely yet; answers of other replicas lack them";
        families.one("store_unfinished_ranks", help, &gauge(unfinished_ranks))?;
        let help = "Changes waiting to be written to the shared store";
        families.one("store_waiting_changes", help, &gauge(waiting_changes))?;
        families.one("store_written_changes", "Changes written to the shared store", &ConstCounter::new(written))?;
        families.one("store_batches", "Batches written to the shared store", &ConstCounter::new(batches))?;
        families.one(
            "store_failed_batches",
            "Batches that the shared store failed to write",
            &ConstCounter::new(failed_batches),
        )?;
        let help = "Buckets rewritten because the shared store had lost writes";
        families.one("store_rewrites", help, &ConstCounter::new(rewrites))?;
        let help = "Times that a rank or a bucket exceeded its limit of pending changes and was written completely";
        families.one("store_overflows", help, &ConstCounter::new(report.published.overflows()))?;
        let help =
            "Values in the shared store that no replica writes, each time a query read one; they count as missing";
        families.one("store_invalid_values_read", help, &ConstCounter::new(invalid_values_read))?;
        let help = "Values in the shared store that no replica writes, removed by this replica";
        families.one("store_invalid_values_removed", help, &ConstCounter::new(invalid_values_removed))?;
        let help = "Panics of shared store tasks, which are restarted";
        families.one("store_task_panics", help, &ConstCounter::new(report.task_panics))
    }
}
