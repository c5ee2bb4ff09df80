//! Comparison of the contenders' answers.

use flash_indexer_core::LocalHash;

use crate::backend::{Backend, MatchTotals};
use crate::workload::Play;

/// Queries whose answers are compared.
const QUERIES_MAX: usize = 256;

/// Queries of a play, sampled at regular distances.
pub(crate) fn queries(play: &Play) -> impl Iterator<Item = &[LocalHash]> {
    let step = play.requests.len().div_ceil(QUERIES_MAX).max(1);
    play.requests.iter().step_by(step).map(|request| request.query.as_slice())
}

/// Sum of the answers to a sample of a play's queries.
pub(crate) fn answers(backend: &dyn Backend, play: &Play) -> MatchTotals {
    answers_to(backend, queries(play))
}

/// Sum of the answers to `queries`.
pub(crate) fn answers_to<'a>(backend: &dyn Backend, queries: impl Iterator<Item = &'a [LocalHash]>) -> MatchTotals {
    let mut finder = backend.finder();
    let mut sum = MatchTotals::default();
    for query in queries {
        finder.load(query);
        finder.find();
        sum += finder.totals();
    }
    sum
}
