//! Weights of blocks by tier.

use std::str::FromStr;

use flash_indexer_core::{PerTier, Tier};

/// The weight of a block in each tier.
///
/// Weights never rise from a faster tier to a slower one, so the fastest of several tiers that hold a block has the
/// largest weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierWeights(PerTier<f64>);

/// Invalid weights.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TierWeightsError {
    /// Not of the form `tier=weight`.
    #[error("invalid tier weight {0:?}; expected tier=number, such as gpu=1.0,cpu=0.8")]
    Form(String),
    /// An unknown tier.
    #[error("unknown tier {0:?}; expected gpu, cpu, disk or external")]
    UnknownTier(String),
    /// Negative, infinite or not a number.
    #[error("invalid tier weight {0}; expected a finite number that is not negative")]
    OutOfRange(f64),
    /// A slower tier has a larger weight.
    #[error("{slower} weighs more than {faster}, a faster tier; give it at most the same weight")]
    Rising {
        /// The faster of two tiers.
        faster: &'static str,
        /// The slower.
        slower: &'static str,
    },
}

/// Names of the tiers in options and answers, fastest first.
const NAMES: [&str; Tier::ALL.len()] = ["gpu", "cpu", "disk", "external"];

impl Default for TierWeights {
    /// Device memory 1.0, host memory 0.8, local disks 0.5, external stores 0.4.
    fn default() -> Self {
        Self(PerTier([1.0, 0.8, 0.5, 0.4]))
    }
}

impl TierWeights {
    /// Creates weights.
    ///
    /// # Errors
    ///
    /// If a weight is negative or not finite, or if a slower tier has a larger weight than a faster one.
    pub fn new(weights: PerTier<f64>) -> Result<Self, TierWeightsError> {
        if let Some(&invalid) = weights.0.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
            return Err(TierWeightsError::OutOfRange(invalid));
        }
        match weights.0.windows(2).position(|pair| pair[1] > pair[0]) {
            None => Ok(Self(weights)),
            Some(at) => Err(TierWeightsError::Rising { faster: NAMES[at], slower: NAMES[at + 1] }),
        }
    }

    /// The weight of a block in this tier.
    #[must_use]
    pub fn of(&self, tier: Tier) -> f64 {
        self.0[tier]
    }

    /// The score of a prefix with these numbers of blocks in each tier. Each block is counted in the fastest tier
    /// that holds it.
    #[must_use]
    pub fn score(&self, blocks: &PerTier<u32>) -> f64 {
        blocks.iter().map(|(tier, &blocks)| self.0[tier] * f64::from(blocks)).sum()
    }
}

/// Parses `gpu=1.0,cpu=0.8`. A tier that is not named has its default weight, or the weight of the next faster tier if
/// that is less.
impl FromStr for TierWeights {
    type Err = TierWeightsError;

    fn from_str(text: &str) -> Result<Self, TierWeightsError> {
        let mut named = PerTier([None; Tier::ALL.len()]);
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let form = || TierWeightsError::Form(part.to_owned());
            let (name, weight) = part.split_once('=').ok_or_else(form)?;
            let tier = NAMES.iter().position(|known| *known == name.trim());
            let tier = tier.ok_or_else(|| TierWeightsError::UnknownTier(name.trim().to_owned()))?;
            named.0[tier] = Some(weight.trim().parse::<f64>().map_err(|_| form())?);
        }
        let mut weights = Self::default().0;
        let mut faster = f64::INFINITY;
        for (weight, named) in weights.0.iter_mut().zip(named.0) {
            *weight = named.unwrap_or(weight.min(faster));
            faster = *weight;
        }
        Self::new(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tier_weights_are_parsed_and_validated() {
        let parse = |text: &str| text.parse::<TierWeights>();
        let of = |weights: TierWeights| Tier::ALL.map(|tier| weights.of(tier));
        assert_eq!(parse(""), Ok(TierWeights::default()));
        assert_eq!(parse("cpu=0.3, gpu=2").map(of), Ok([2.0, 0.3, 0.3, 0.3]), "a slower tier never weighs more");
        assert_eq!(parse("gpu=1,cpu=1,disk=1,external=1"), Ok(TierWeights(PerTier([1.0; Tier::ALL.len()]))));
        let message = |text: &str| parse(text).expect_err("invalid").to_string();
        assert!(message("gpu").contains("tier=number"));
        assert!(message("gpu=x").contains("tier=number"));
        assert!(message("tape=1").contains("gpu, cpu, disk or external"));
        assert!(message("cpu=NaN").contains("finite"));
        assert!(message("gpu=-1").contains("not negative"));
        assert!(message("disk=0.9").contains("disk weighs more than cpu"));
    }
}
