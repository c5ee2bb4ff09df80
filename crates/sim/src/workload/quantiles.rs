//! Random numbers with given quantiles.

use crate::random::Random;

/// A distribution given by its quantiles, linear between them. Computed with additions and multiplications only:
/// every machine draws the same numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantiles(pub(super) &'static [(f64, f64)]);

impl Quantiles {
    /// The value at a quantile from 0 to 1.
    pub(super) fn at(self, quantile: f64) -> usize {
        let Self(points) = self;
        let after = points.partition_point(|&(known, _)| known < quantile).clamp(1, points.len() - 1);
        let ((start, low), (end, high)) = (points[after - 1], points[after]);
        (low + (high - low) * (quantile - start) / (end - start)) as usize
    }

    pub(super) fn draw(self, random: &mut Random) -> usize {
        self.at(uniform(random))
    }
}

/// A uniform number from 0 to 1.
pub(super) fn uniform(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1_u64 << 53) as f64
}
