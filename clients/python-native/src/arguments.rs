//! Checks of arrays, tiers and sizes.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, Tier, WorkerId, WorkerRank};
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// A one-dimensional array of the caller, read in place.
pub(crate) fn array<'py, T: Element>(
    name: &str,
    dtype: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    let fix = format!("pass numpy.ascontiguousarray({name}, dtype=numpy.{dtype})");
    let Ok(array) = value.cast::<PyArray1<T>>() else {
        let got = match value.cast::<PyUntypedArray>() {
            Ok(other) => format!("an array of {} with {} dimensions", other.dtype().str()?, other.ndim()),
            Err(_) => value.get_type().name()?.to_string(),
        };
        let message =
            format!("failed to read {name}: expected a one-dimensional numpy array of {dtype}, got {got}; {fix}");
        return Err(PyTypeError::new_err(message));
    };
    if !array.is_c_contiguous() {
        let message = format!("failed to read {name}: the array is not contiguous; {fix}");
        return Err(PyValueError::new_err(message));
    }
    array.try_readonly().map_err(|error| PyValueError::new_err(format!("failed to read {name}: {error}; {fix}")))
}

/// The elements of an array.
pub(crate) fn elements<'a, T: Element>(name: &str, array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|error| {
        PyValueError::new_err(format!("failed to read {name}: {error}; pass numpy.ascontiguousarray({name})"))
    })
}

pub(crate) fn tier(name: &str) -> PyResult<Tier> {
    Tier::ALL.into_iter().find(|tier| tier.as_str() == name).ok_or_else(|| {
        let names = Tier::ALL.map(Tier::as_str).join(", ");
        PyValueError::new_err(format!("failed to read tier: {name:?} is none; use one of {names}"))
    })
}

pub(crate) fn block_size(tokens: u32) -> PyResult<BlockSize> {
    BlockSize::new(tokens)
        .ok_or_else(|| PyValueError::new_err("failed to read block_size: it is 0; pass the engines' tokens per block"))
}

pub(crate) fn rank(instance: u64, dp_rank: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(instance), dp_rank: DpRank(dp_rank) }
}
