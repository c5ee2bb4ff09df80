//! A histogram that threads update without a lock.

use std::fmt;
use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Observation counts by value. An observation costs two atomic operations. A reader may see an observation's bucket
/// before its sum.
#[derive(Debug, Clone)]
pub(crate) struct Histogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    /// Upper bound of each bucket, ascending; one more bucket has no upper bound.
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    /// Sum of all observations, as the bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Buckets { bounds, counts, sum: AtomicU64::new(0f64.to_bits()) }))
    }

    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.0.bounds.partition_point(|&bound| bound < value);
        self.0.counts[bucket].fetch_add(1, Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // The closure never returns `None`, so the update cannot fail.
        let _ = self.0.sum.fetch_update(Relaxed, Relaxed, add);
    }

    /// Adds the count of each bucket to `counts`. The last bucket has no upper bound.
    pub(crate) fn add_counts(&self, counts: &mut [u64]) {
        for (sum, count) in counts.iter_mut().zip(&self.0.counts) {
            *sum += count.load(Relaxed);
        }
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.0.bounds.iter().copied().chain(once(f64::INFINITY));
        let buckets: Vec<_> = bounds.zip(self.0.counts.iter().map(|count| count.load(Relaxed))).collect();
        let count = buckets.iter().map(|&(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(f64::from_bits(self.0.sum.load(Relaxed)), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}
