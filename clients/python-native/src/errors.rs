//! Exceptions.

use flash_indexer_embed::EmbedError;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyException;

create_exception!(flash_index, FlashIndexError, PyException, "A call of an index failed and changed nothing.");
create_exception!(flash_index, NotRegistered, FlashIndexError, "The instance is not registered.");
create_exception!(flash_index, AlreadyRegistered, FlashIndexError, "The instance is registered already.");
create_exception!(flash_index, LimitReached, FlashIndexError, "A limit of the index is reached.");

/// The exception for an error of the index.
pub(crate) fn raised(error: EmbedError) -> PyErr {
    let text = error.to_string();
    match error {
        EmbedError::NotRegistered(_) => NotRegistered::new_err(text),
        EmbedError::AlreadyRegistered(_) => AlreadyRegistered::new_err(text),
        EmbedError::TooManyRanks { .. } => LimitReached::new_err(text),
        EmbedError::RankOfOtherStream { .. } | EmbedError::Abandoned => FlashIndexError::new_err(text),
    }
}
