//! Whether contenders answer alike.

use flash_indexer_core::LocalHash;

use crate::backend::{Backend, Found};
use crate::workload::Play;

/// Queries whose answers are compared.
const QUERIES_MAX: usize = 256;

/// Queries of a play, spread evenly over it.
pub(crate) fn queries(play: &Play) -> impl Iterator<Item = &[LocalHash]> {
    let step = play.requests.len().div_ceil(QUERIES_MAX).max(1);
    play.requests.iter().step_by(step).map(|request| request.query.as_slice())
}

/// The answers to some of a play's queries, added up.
pub(crate) fn answers(backend: &dyn Backend, play: &Play) -> Found {
    answers_to(backend, queries(play))
}

/// The answers to `queries`, added up.
pub(crate) fn answers_to<'a>(backend: &dyn Backend, queries: impl Iterator<Item = &'a [LocalHash]>) -> Found {
    let mut finder = backend.finder();
    let mut sum = Found::default();
    for query in queries {
        finder.load(query);
        finder.find();
        sum += finder.found();
    }
    sum
}
