//! What a check comes to.

use serde::Serialize;

/// How a check ended. What is worse is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be, or nothing to judge by.
    Ok,
    /// Answers can be right, but something should be looked at.
    Warning,
    /// Answers are wrong or will be.
    Problem,
}

impl Verdict {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// One check of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// What was seen.
    pub(super) seen: String,
    /// What to do about it; of everything that is not well.
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
