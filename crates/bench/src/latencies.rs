//! Histogram of short timings.

use hdrhistogram::Histogram;

/// Timings of single calls, to three digits.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

/// Summary of timings, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyFigures {
    /// Number of timings.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.99th percentile.
    pub p9999_ns: f64,
    /// Maximum.
    pub max_ns: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are possible"))
    }
}

impl Latencies {
    /// Adds one timing, in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.0.record(ns).expect("the histogram grows automatically");
    }

    /// The summary; zeros without timings.
    #[must_use]
    pub fn figures(&self) -> LatencyFigures {
        let Self(histogram) = self;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64;
        LatencyFigures {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p9999_ns: at(0.9999),
            max_ns: histogram.max() as f64,
        }
    }
}
