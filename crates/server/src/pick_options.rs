//! Options of a pick, as a request gives them.

use flash_indexer_registry::{CostWeights, PickOptions, WEIGHT_MAX};

/// Options as a request gives them. Absent ones have their defaults.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UncheckedPickOptions {
    pub(crate) prefill_weight: Option<f64>,
    pub(crate) active_weight: Option<f64>,
    pub(crate) request_weight: Option<f64>,
    pub(crate) pick_temperature: Option<f64>,
    /// A random one if absent.
    pub(crate) pick_seed: Option<u64>,
}

/// Invalid options of a pick.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum PickOptionsError {
    #[error("{name} is {value}; send a number from 0 to {WEIGHT_MAX:e}")]
    Number { name: &'static str, value: f64 },
    #[error("failed to make a random seed: {0}; send pick_seed")]
    Seed(getrandom::Error),
}

impl UncheckedPickOptions {
    /// Checks the options, and adds a seed where there is none.
    pub(crate) fn checked(self) -> Result<PickOptions, PickOptionsError> {
        let number = |name, value: Option<f64>, default: f64| match value.unwrap_or(default) {
            value if (0.0..=WEIGHT_MAX).contains(&value) => Ok(value),
            value => Err(PickOptionsError::Number { name, value }),
        };
        let defaults = CostWeights::default();
        let weights = CostWeights {
            prefill: number("prefill_weight", self.prefill_weight, defaults.prefill)?,
            active: number("active_weight", self.active_weight, defaults.active)?,
            requests: number("request_weight", self.request_weight, defaults.requests)?,
        };
        let temperature = number("pick_temperature", self.pick_temperature, 0.0)?;
        let seed = match self.pick_seed {
            Some(seed) => seed,
            None => u64::from(getrandom::u32().map_err(PickOptionsError::Seed)?),
        };
        Ok(PickOptions { weights, temperature, seed, requests_max: None })
    }
}
