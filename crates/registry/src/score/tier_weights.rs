//! Weights of blocks by tier.

use std::str::FromStr;

use flash_indexer_core::{PerTier, Tier};

/// The weight of a block in each tier.
///
/// Weights never rise from a faster tier to a slower one, so that of several tiers that hold a block the fastest has the
/// largest weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierWeights(PerTier<f64>);

/// Invalid weights.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TierWeightsError {
    /// Not of the form `tier=weight`.
    #[error("{0:?} is not a weight: write tier=number, such as gpu=1.0,cpu=0.8")]
    Form(String),
    /// An unknown tier.
    #[error("there is no tier {0:?}: the tiers are gpu, cpu, disk and external")]
    UnknownTier(String),
    /// Negative, infinite or not a number.
    #[error("the weight {0} of a block cannot be used: give a finite number that is not negative")]
    OutOfRange(f64),
    /// A slower tier would be worth more.
    #[error("{slower} weighs more than {faster}, which is faster: give it at most the same weight")]
    Rising {
        /// The faster of two tiers.
        faster: &'static str,
        /// The slower.
        slower: &'static str,
    },
}

/// What users call the tiers, fastest first.
const NAMES: [&str; Tier::ALL.len()] = ["gpu", "cpu", "disk", "external"];

impl Default for TierWeights {
    /// Device memory 1.0, host memory 0.8, local disks 0.5, stores outside 0.4.
    fn default() -> Self {
        Self(PerTier([1.0, 0.8, 0.5, 0.4]))
    }
}

impl TierWeights {
    /// The scorer of the longest prefix: every tier counts as one.
    pub const LONGEST_PREFIX: Self = Self(PerTier([1.0; Tier::ALL.len()]));

    /// These weights.
    ///
    /// # Errors
    ///
    /// When one is not a finite number from zero up, or they rise from a faster to a slower tier.
    pub fn new(weights: PerTier<f64>) -> Result<Self, TierWeightsError> {
        if let Some(&wrong) = weights.0.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
            return Err(TierWeightsError::OutOfRange(wrong));
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

    /// The score of a prefix with these numbers of blocks in each tier. Each block counts in the fastest tier that holds it.
    #[must_use]
    pub fn score(&self, blocks: &PerTier<u32>) -> f64 {
        blocks.iter().map(|(tier, &blocks)| self.0[tier] * f64::from(blocks)).sum()
    }
}

/// `gpu=1.0,cpu=0.8`: tiers that are not named keep the default, or the weight of the next faster tier where that is less.
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
    fn weights_are_read_and_checked() {
        let read = |text: &str| text.parse::<TierWeights>();
        let of = |weights: TierWeights| Tier::ALL.map(|tier| weights.of(tier));
        assert_eq!(read(""), Ok(TierWeights::default()));
        assert_eq!(read("cpu=0.3, gpu=2").map(of), Ok([2.0, 0.3, 0.3, 0.3]), "slower tiers never weigh more");
        assert_eq!(read("gpu=1,cpu=1,disk=1,external=1"), Ok(TierWeights::LONGEST_PREFIX));
        let message = |text: &str| read(text).expect_err("it is wrong").to_string();
        assert!(message("gpu").contains("tier=number"));
        assert!(message("gpu=x").contains("tier=number"));
        assert!(message("tape=1").contains("gpu, cpu, disk and external"));
        assert!(message("cpu=NaN").contains("finite"));
        assert!(message("gpu=-1").contains("not negative"));
        assert!(message("disk=0.9").contains("disk weighs more than cpu"));
    }
}
