//! Many short timings.

use hdrhistogram::Histogram;

/// Timings of single calls, to three digits.
#[derive(Debug, Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

/// Timings in figures, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyFigures {
    /// Timings.
    pub count: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Half of them took no longer.
    pub p50_ns: f64,
    /// Ninety-nine of a hundred took no longer.
    pub p99_ns: f64,
    /// The longest.
    pub max_ns: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { histogram: Histogram::new(3).expect("three digits are possible") }
    }
}

impl Latencies {
    /// Adds one timing, in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.histogram.record(ns).expect("the histogram grows as it must");
    }

    /// The figures; of no timings, zeros.
    #[must_use]
    pub fn figures(&self) -> LatencyFigures {
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64;
        LatencyFigures {
            count: self.histogram.len(),
            mean_ns: self.histogram.mean(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: self.histogram.max() as f64,
        }
    }
}
