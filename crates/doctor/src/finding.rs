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
    pub(super) verdict: Verdict,
    /// The observation.
    pub(super) seen: String,
    /// The fix; none for [`Verdict::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, seen: seen.into(), fix: None }
    }

    pub(super) fn warning(check: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, seen: seen.into(), fix: Some(fix.into()) }
    }

    pub(super) fn problem(check: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Problem, seen: seen.into(), fix: Some(fix.into()) }
    }
}
