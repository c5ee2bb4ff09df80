//! The index of a fleet inside a Python process: the module `flash_index._native`.
//!
//! `python/flash_index/_native.pyi` documents the classes and functions.
//!
//! | file | role |
//! |---|---|
//! | `index` | the class `FlashIndex` |
//! | `answers` | answers as arrays: `Matches`, `Sizes` |
//! | `report` | effects of a change or a message: `Applied`, `Report`, `Rejection`, `ReplayRequest` |
//! | `arguments` | checks of arrays, tiers and sizes |
//! | `errors` | exceptions |
//!
//! Calls that work on blocks release the interpreter's lock. Meanwhile they read the caller's arrays in place.

use pyo3::prelude::*;

mod answers;
mod arguments;
mod errors;
mod index;
mod report;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::answers::{Matches, Sizes};
    #[pymodule_export]
    use super::errors::{AlreadyRegistered, FlashIndexError, LimitReached, NotRegistered};
    #[pymodule_export]
    use super::index::{FlashIndex, hash_tokens};
    #[pymodule_export]
    use super::report::{Applied, Rejection, ReplayRequest, Report};
}
