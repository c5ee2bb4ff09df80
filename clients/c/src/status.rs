//! Status codes, error texts, and the guard against panics.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use flash_indexer_embed::EmbedError;

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum FlashIndexStatus {
    /// The call has done its work.
    Ok = 0,
    /// A pointer is NULL that must not be.
    NullPointer = 1,
    /// A value is out of range, or a text is not UTF-8.
    InvalidArgument = 2,
    /// The caller's buffer is too small for the result. The number of elements that are needed was written.
    BufferTooSmall = 3,
    /// The instance or the rank is not known.
    NotFound = 4,
    /// The instance is registered already.
    AlreadyRegistered = 5,
    /// A limit of the index is reached.
    LimitReached = 6,
    /// The library has a defect: a call panicked. The index cannot be used any more, only freed.
    Panicked = 7,
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: FlashIndexStatus,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: FlashIndexStatus, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<EmbedError> for Failure {
    fn from(error: EmbedError) -> Self {
        let status = match error {
            EmbedError::NotRegistered(_) => FlashIndexStatus::NotFound,
            EmbedError::AlreadyRegistered(_) => FlashIndexStatus::AlreadyRegistered,
            EmbedError::RankOfOtherStream { .. } => FlashIndexStatus::InvalidArgument,
            EmbedError::TooManyRanks { .. } => FlashIndexStatus::LimitReached,
            EmbedError::Abandoned => FlashIndexStatus::Panicked,
        };
        Self::new(status, error.to_string())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static LAST_REJECTIONS: RefCell<CString> = RefCell::default();
}

/// Text for C. A NUL character inside would truncate it.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).expect("it has no NUL character")
}

pub(crate) fn set_last_rejections(text: &str) {
    LAST_REJECTIONS.with_borrow_mut(|last| *last = c_text(text));
}

/// Runs a call. A failure becomes the thread's last error, and a panic never leaves the library.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> FlashIndexStatus {
    // A panic of a change abandons the index, which all later calls report.
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let message = format!("failed to complete the call: it panicked: {text}; report it, and create a new index");
        Err(Failure::new(FlashIndexStatus::Panicked, message))
    });
    match result {
        Ok(()) => FlashIndexStatus::Ok,
        Err(Failure { status, message }) => {
            LAST_ERROR.with_borrow_mut(|last| *last = c_text(&message));
            status
        }
    }
}

/// The cause of this thread's last failed call and what to do, in UTF-8; empty if no call has failed. Valid until the thread's
/// next failed call; do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn flash_index_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|last| last.as_ptr())
}

/// What the thread's last message rejected, in UTF-8, a line for each reason: its label, the number of events or messages,
/// and an explanation, separated by tabs; empty if nothing was rejected. Valid until the thread applies its next message; do
/// not free it.
#[unsafe(no_mangle)]
pub extern "C" fn flash_index_last_rejections() -> *const c_char {
    LAST_REJECTIONS.with_borrow(|last| last.as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_a_text() {
        assert_eq!(guarded(|| panic!("a\0b")), FlashIndexStatus::Panicked);
        // SAFETY: the text is valid until this thread's next failed call.
        let text = unsafe { CStr::from_ptr(flash_index_last_error()) }.to_str().expect("UTF-8");
        assert!(text.contains("it panicked: a\u{fffd}b;"), "{text}");
    }
}
