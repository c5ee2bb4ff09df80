//! Sampling ratio: the share of requests that begin a trace.

use std::str::FromStr;

/// Share of the requests without a caller's context that are traced, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRatio(f64);

/// Text that is not a sampling ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not a number from 0 to 1; give 0.01 for one request in a hundred")]
pub struct SampleRatioError;

impl SampleRatio {
    /// The ratio as a number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Default for SampleRatio {
    /// One request in a hundred: at ten thousand queries in a second, about six hundred spans.
    fn default() -> Self {
        Self(0.01)
    }
}

impl FromStr for SampleRatio {
    type Err = SampleRatioError;

    fn from_str(text: &str) -> Result<Self, SampleRatioError> {
        let ratio = text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.map(Self).ok_or(SampleRatioError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        assert_eq!([" 0", "1", "0.25"].map(|text| text.parse().map(SampleRatio::get)), [Ok(0.0), Ok(1.0), Ok(0.25)]);
        for text in ["", "-0.1", "1.01", "NaN", "inf", "1%", "a"] {
            assert_eq!(text.parse::<SampleRatio>(), Err(SampleRatioError), "{text}");
        }
    }
}
