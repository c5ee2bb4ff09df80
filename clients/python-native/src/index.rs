//! The class `FlashIndex`.

use std::time::Instant;

use flash_indexer_core::hashing::{HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, WorkerId, WorkerRank};
use flash_indexer_embed::{EmbedError, EmbeddedIndex, EngineOptions, MessageReport};
use flash_indexer_wire::ReplaySupport;
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::answers::{Matches, Sizes};
use crate::arguments::{array, block_size, elements, rank, tier};
use crate::errors::raised;
use crate::report::{Applied, Report};

/// An index of the cached blocks of engines that serve one model.
#[pyclass(frozen, module = "flash_index")]
#[derive(Debug)]
pub(crate) struct FlashIndex {
    embedded: EmbeddedIndex,
}

impl FlashIndex {
    fn apply(&self, py: Python<'_>, rank: WorkerRank, event: impl FnOnce() -> BlockEvent + Send) -> PyResult<Applied> {
        py.detach(|| self.embedded.apply(rank, &event())).map(Applied::from).map_err(raised)
    }

    fn receive(
        &self,
        py: Python<'_>,
        input: impl FnOnce(&EmbeddedIndex) -> Result<MessageReport, EmbedError> + Send,
    ) -> PyResult<Report> {
        py.detach(|| input(&self.embedded)).map(Report::from).map_err(raised)
    }
}

#[pymethods]
impl FlashIndex {
    #[new]
    fn new(block_size: u32) -> PyResult<Self> {
        Ok(Self { embedded: EmbeddedIndex::new(self::block_size(block_size)?) })
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.embedded.block_size().tokens()
    }

    #[pyo3(signature = (instance, *, engine = "auto", lora_name = None, removes_last_copy = false, replays = false, extra_keys = false))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn register(
        &self,
        py: Python<'_>,
        instance: u64,
        engine: &str,
        lora_name: Option<String>,
        removes_last_copy: bool,
        replays: bool,
        extra_keys: bool,
    ) -> PyResult<()> {
        let engine = EngineOptions::of_engine(engine).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let options = EngineOptions {
            lora_name: lora_name.filter(|name| !name.is_empty()),
            removed_copies: if removes_last_copy { RemovedCopies::All } else { RemovedCopies::One },
            replay: if replays { ReplaySupport::Available } else { ReplaySupport::Unavailable },
            extra_keys,
            ..engine
        };
        py.detach(|| self.embedded.register(WorkerId(instance), options)).map_err(raised)
    }

    fn unregister(&self, py: Python<'_>, instance: u64) -> PyResult<()> {
        py.detach(|| self.embedded.unregister(WorkerId(instance))).map_err(raised)
    }

    fn instances<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        let instances = py.detach(|| self.embedded.instances());
        PyArray1::from_vec(py, instances.into_iter().map(|instance| instance.0).collect())
    }

    #[pyo3(signature = (instance, sequence_hashes, local_hashes, *, dp_rank = 0, parent = None, tier = "device"))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn store(
        &self,
        py: Python<'_>,
        instance: u64,
        sequence_hashes: &Bound<'_, PyAny>,
        local_hashes: &Bound<'_, PyAny>,
        dp_rank: u32,
        parent: Option<u64>,
        tier: &str,
    ) -> PyResult<Applied> {
        let tier = self::tier(tier)?;
        let sequences = array::<u64>("sequence_hashes", "uint64", sequence_hashes)?;
        let locals = array::<u64>("local_hashes", "uint64", local_hashes)?;
        let sequences = elements("sequence_hashes", &sequences)?;
        let locals = elements("local_hashes", &locals)?;
        if sequences.len() != locals.len() {
            let (sequences, locals) = (sequences.len(), locals.len());
            let message = format!(
                "failed to store blocks: there are {sequences} sequence_hashes and {locals} local_hashes; pass one of each for each block"
            );
            return Err(PyValueError::new_err(message));
        }
        self.apply(py, rank(instance, dp_rank), || {
            let blocks = sequences.iter().zip(locals);
            let block = |(&sequence, &local)| Block { sequence: SequenceHash(sequence), local: LocalHash(local) };
            let parent = parent.map(SequenceHash);
            BlockEvent::Stored { tier, parent, blocks: blocks.map(block).collect(), copies: 1 }
        })
    }

    #[pyo3(signature = (instance, sequence_hashes, *, tier, dp_rank = 0))]
    fn copy(
        &self,
        py: Python<'_>,
        instance: u64,
        sequence_hashes: &Bound<'_, PyAny>,
        tier: &str,
        dp_rank: u32,
    ) -> PyResult<Applied> {
        let tier = self::tier(tier)?;
        let sequences = array::<u64>("sequence_hashes", "uint64", sequence_hashes)?;
        let sequences = elements("sequence_hashes", &sequences)?;
        self.apply(py, rank(instance, dp_rank), || BlockEvent::Copied { tier, blocks: sequence_hashes_of(sequences) })
    }

    #[pyo3(signature = (instance, sequence_hashes, *, dp_rank = 0, tier = "device", all_copies = false))]
    fn remove(
        &self,
        py: Python<'_>,
        instance: u64,
        sequence_hashes: &Bound<'_, PyAny>,
        dp_rank: u32,
        tier: &str,
        all_copies: bool,
    ) -> PyResult<Applied> {
        let tier = self::tier(tier)?;
        let sequences = array::<u64>("sequence_hashes", "uint64", sequence_hashes)?;
        let sequences = elements("sequence_hashes", &sequences)?;
        let copies = if all_copies { RemovedCopies::All } else { RemovedCopies::One };
        let event = || BlockEvent::Removed { tier, blocks: sequence_hashes_of(sequences), copies };
        self.apply(py, rank(instance, dp_rank), event)
    }

    #[pyo3(signature = (instance, *, dp_rank = 0))]
    fn clear(&self, py: Python<'_>, instance: u64, dp_rank: u32) -> PyResult<Applied> {
        self.apply(py, rank(instance, dp_rank), || BlockEvent::Cleared)
    }

    #[pyo3(signature = (instance, frames, *, dp_rank = 0))]
    fn apply_frames(
        &self,
        py: Python<'_>,
        instance: u64,
        frames: Vec<PyBackedBytes>,
        dp_rank: u32,
    ) -> PyResult<Report> {
        self.receive(py, |index| index.apply_frames(rank(instance, dp_rank), &frames, Instant::now()))
    }

    #[pyo3(signature = (instance, payload, *, sequence, dp_rank = 0))]
    fn apply_payload(
        &self,
        py: Python<'_>,
        instance: u64,
        payload: PyBackedBytes,
        sequence: Option<u64>,
        dp_rank: u32,
    ) -> PyResult<Report> {
        self.receive(py, |index| index.apply_payload(rank(instance, dp_rank), sequence, &payload, Instant::now()))
    }

    #[pyo3(signature = (instance, attempt, frames, *, dp_rank = 0))]
    fn apply_replayed(
        &self,
        py: Python<'_>,
        instance: u64,
        attempt: u32,
        frames: Vec<PyBackedBytes>,
        dp_rank: u32,
    ) -> PyResult<Report> {
        self.receive(py, |index| index.apply_replayed(rank(instance, dp_rank), attempt, &frames, Instant::now()))
    }

    #[pyo3(signature = (instance, *, dp_rank = 0))]
    fn connected(&self, py: Python<'_>, instance: u64, dp_rank: u32) -> PyResult<Report> {
        self.receive(py, |index| index.connected(rank(instance, dp_rank), Instant::now()))
    }

    #[pyo3(signature = (instance, *, dp_rank = 0))]
    fn disconnected(&self, py: Python<'_>, instance: u64, dp_rank: u32) -> PyResult<Report> {
        self.receive(py, |index| index.disconnected(rank(instance, dp_rank), Instant::now()))
    }

    #[pyo3(signature = (instance, *, dp_rank = 0))]
    fn tick(&self, py: Python<'_>, instance: u64, dp_rank: u32) -> PyResult<Report> {
        self.receive(py, |index| index.tick(rank(instance, dp_rank), Instant::now()))
    }

    #[pyo3(signature = (tokens, *, top_k = None, lora_name = None, cache_salt = None))]
    fn query(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        top_k: Option<usize>,
        lora_name: Option<&str>,
        cache_salt: Option<&str>,
    ) -> PyResult<Matches> {
        let tokens = array::<u32>("tokens", "uint32", tokens)?;
        let tokens = elements("tokens", &tokens)?;
        let variant = HashVariant::new(lora_name, cache_salt);
        let found = py.detach(|| self.embedded.find_tokens(variant, tokens, top_k)).map_err(raised)?;
        Matches::new(py, &found)
    }

    #[pyo3(signature = (hashes, *, top_k = None))]
    fn query_hashes(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>, top_k: Option<usize>) -> PyResult<Matches> {
        let hashes = array::<u64>("hashes", "uint64", hashes)?;
        let hashes = LocalHash::of_slice(elements("hashes", &hashes)?);
        let found = py.detach(|| self.embedded.find_hashes(hashes, top_k)).map_err(raised)?;
        Matches::new(py, &found)
    }

    fn sizes(&self, py: Python<'_>) -> PyResult<Sizes> {
        let sizes = py.detach(|| self.embedded.sizes()).map_err(raised)?;
        Sizes::new(py, &sizes)
    }

    #[pyo3(signature = (instance, *, dp_rank = 0))]
    fn trust(&self, py: Python<'_>, instance: u64, dp_rank: u32) -> PyResult<Option<(&'static str, Option<String>)>> {
        let trust = py.detach(|| self.embedded.trust(rank(instance, dp_rank))).map_err(raised)?;
        Ok(trust.map(|trust| (trust.state.as_str(), trust.why)))
    }

    fn memory_bytes(&self) -> usize {
        self.embedded.memory_bytes()
    }

    fn maintain(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.embedded.maintain()).map_err(raised)
    }

    fn __repr__(&self) -> String {
        let (size, instances) = (self.embedded.block_size().tokens(), self.embedded.instances().len());
        format!("FlashIndex(block_size={size}) with {instances} instances")
    }
}

fn sequence_hashes_of(hashes: &[u64]) -> Vec<SequenceHash> {
    hashes.iter().copied().map(SequenceHash).collect()
}

/// Local hashes of all complete blocks of a prompt.
#[pyfunction]
#[pyo3(signature = (tokens, block_size, *, lora_name = None, cache_salt = None))]
pub(crate) fn hash_tokens<'py>(
    py: Python<'py>,
    tokens: &Bound<'py, PyAny>,
    block_size: u32,
    lora_name: Option<&str>,
    cache_salt: Option<&str>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let block_size = self::block_size(block_size)?;
    let tokens = array::<u32>("tokens", "uint32", tokens)?;
    let tokens = elements("tokens", &tokens)?;
    let variant = HashVariant::new(lora_name, cache_salt);
    let hashes = py.detach(|| local_hashes(variant, tokens, block_size, TokenWindow::Block));
    Ok(PyArray1::from_vec(py, hashes.into_iter().map(|hash| hash.0).collect()))
}
