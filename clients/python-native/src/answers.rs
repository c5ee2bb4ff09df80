//! Answers as arrays.

use std::cmp::Reverse;

use flash_indexer_core::{RankSize, Tier, WorkerRank};
use flash_indexer_embed::FoundRank;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;

const TIERS: usize = Tier::ALL.len();

/// Ranks that hold the first block of a query.
#[pyclass(frozen, get_all, module = "flash_index")]
#[derive(Debug)]
pub(crate) struct Matches {
    instances: Py<PyArray1<u64>>,
    dp_ranks: Py<PyArray1<u32>>,
    blocks: Py<PyArray2<u32>>,
    trust: Py<PyArray1<u8>>,
    best: Option<u64>,
}

impl Matches {
    /// The arrays of an answer. The columns become arrays without a copy.
    pub(crate) fn new(py: Python<'_>, found: &[FoundRank]) -> PyResult<Self> {
        let depth =
            |found: &&FoundRank| (found.blocks[Tier::Device], found.blocks[Tier::External], Reverse(found.rank));
        let blocks: Vec<u32> = found.iter().flat_map(|found| found.blocks.0).collect();
        Ok(Self {
            instances: PyArray1::from_vec(py, found.iter().map(|found| found.rank.worker.0).collect()).unbind(),
            dp_ranks: PyArray1::from_vec(py, found.iter().map(|found| found.rank.dp_rank.0).collect()).unbind(),
            blocks: PyArray1::from_vec(py, blocks).reshape([found.len(), TIERS])?.unbind(),
            trust: PyArray1::from_vec(py, found.iter().map(|found| found.trust as u8).collect()).unbind(),
            best: found.iter().max_by_key(depth).map(|found| found.rank.worker.0),
        })
    }
}

#[pymethods]
impl Matches {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.instances.bind(py).len()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "Matches(instances={}, dp_ranks={}, blocks={}, trust={})",
            self.instances.bind(py),
            self.dp_ranks.bind(py),
            self.blocks.bind(py),
            self.trust.bind(py)
        ))
    }
}

/// Blocks of every rank.
#[pyclass(frozen, get_all, module = "flash_index")]
#[derive(Debug)]
pub(crate) struct Sizes {
    instances: Py<PyArray1<u64>>,
    dp_ranks: Py<PyArray1<u32>>,
    blocks: Py<PyArray1<u64>>,
    by_tier: Py<PyArray2<u64>>,
    waiting: Py<PyArray1<u64>>,
}

impl Sizes {
    pub(crate) fn new(py: Python<'_>, sizes: &[(WorkerRank, RankSize)]) -> PyResult<Self> {
        let column = |value: fn(&RankSize) -> usize| {
            PyArray1::from_vec(py, sizes.iter().map(|(_, size)| value(size) as u64).collect()).unbind()
        };
        let by_tier: Vec<u64> = sizes.iter().flat_map(|(_, size)| size.by_tier.0.map(|blocks| blocks as u64)).collect();
        Ok(Self {
            instances: PyArray1::from_vec(py, sizes.iter().map(|(rank, _)| rank.worker.0).collect()).unbind(),
            dp_ranks: PyArray1::from_vec(py, sizes.iter().map(|(rank, _)| rank.dp_rank.0).collect()).unbind(),
            blocks: column(|size| size.blocks),
            by_tier: PyArray1::from_vec(py, by_tier).reshape([sizes.len(), TIERS])?.unbind(),
            waiting: column(|size| size.waiting),
        })
    }
}

#[pymethods]
impl Sizes {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.instances.bind(py).len()
    }
}
