//! The result of a check.

use serde::Serialize;

flash_indexer_core::named_enum! {
    /// Severity of a finding; the worse one is greater.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Verdict {
        /// Correct, or nothing to check.
        Ok = "ok",
        /// Answers can be right, but an operator should look into it.
        Warning = "warning",
        /// Answers are wrong or will be.
        Problem = "problem",
    }
}

/// The result of one check of one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// The observation.
    pub(super) seen: String,
    /// The fix; none for [`Verdict::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Outcome {
    /// The finding of the check with this name.
    pub(super) fn of(self, check: &'static str) -> Finding {
        Finding { check, outcome: self }
    }

    pub(super) fn ok(seen: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, seen: seen.into(), fix: None }
    }

    pub(super) fn warning(seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, seen: seen.into(), fix: Some(fix.into()) }
    }

    pub(super) fn problem(seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Problem, seen: seen.into(), fix: Some(fix.into()) }
    }
}
