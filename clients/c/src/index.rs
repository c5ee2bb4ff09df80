//! Creation of an index, registrations and maintenance.

use std::ffi::c_char;

use flash_indexer_core::RemovedCopies;
use flash_indexer_core::WorkerId;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_embed::{EmbeddedIndex, EngineOptions, UnknownEngine};
use flash_indexer_wire::ReplaySupport;

use crate::arguments;
use crate::status::{Failure, FlashIndexStatus, guarded};

/// An index of the cached blocks of engines that serve one model. The caller owns it and frees it with flash_index_free.
#[derive(Debug)]
pub struct FlashIndex {
    pub(crate) embedded: EmbeddedIndex,
}

/// Settings of an engine whose messages an index receives. All zero is right for engines without further settings.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct FlashIndexEngine {
    /// `"vllm"`, `"sglang"` or `"trtllm"`; NULL detects the format from the messages.
    pub engine: *const c_char,
    /// LoRA adapter of events that name none; NULL for none.
    pub lora_name: *const c_char,
    /// Whether a removal ends all copies of a block in its tier. Most engines publish one removal for each copy.
    pub removes_last_copy: bool,
    /// Whether the caller requests missing messages from the engine: FlashIndexReport names them.
    pub replays: bool,
    /// Whether requests to the engine carry keys that its events lack, such as SGLang's extra_key. Its ranks are then never
    /// exact.
    pub extra_keys: bool,
}

/// Creates an index for blocks of block_size tokens and writes it to *index.
///
/// # Safety
///
/// index points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_create(block_size: u32, index: *mut *mut FlashIndex) -> FlashIndexStatus {
    guarded(|| {
        if index.is_null() {
            return Err(Failure::new(
                FlashIndexStatus::NullPointer,
                "failed to create an index: index is NULL; pass a pointer to a FlashIndex pointer",
            ));
        }
        arguments::check_result("index", index)?;
        let size = BlockSize::new(block_size).ok_or_else(|| {
            let message = "failed to create an index: block_size is 0; pass the engines' tokens per block";
            Failure::new(FlashIndexStatus::InvalidArgument, message)
        })?;
        let created = Box::new(FlashIndex { embedded: EmbeddedIndex::new(size) });
        // SAFETY: the caller passes a pointer to a pointer.
        unsafe { arguments::write("index", index, Box::into_raw(created)) }
    })
}

/// Frees an index; NULL does nothing. No other call may use it during or after this one.
///
/// # Safety
///
/// index is NULL, or was created by flash_index_create and is not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_free(index: *mut FlashIndex) {
    if index.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: created by `Box::into_raw`, and by contract not freed before.
        drop(unsafe { Box::from_raw(index) });
        Ok(())
    });
}

/// Registers an instance, which the caller numbers. engine may be NULL for an engine without further settings. The ranks of
/// the instance are known from their first message or change.
///
/// # Safety
///
/// index is a valid index; engine is NULL or valid, and so are its texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_register(
    index: *const FlashIndex,
    instance: u64,
    engine: *const FlashIndexEngine,
) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        // SAFETY: by this function's contract.
        let settings = unsafe { arguments::array("engine", engine, usize::from(!engine.is_null())) }?.first();
        let options = match settings {
            None => EngineOptions::default(),
            Some(settings) => {
                // SAFETY: by this function's contract.
                let name = unsafe { arguments::text("engine", settings.engine) }?.unwrap_or("auto");
                // SAFETY: by this function's contract.
                let lora_name = unsafe { arguments::text("lora_name", settings.lora_name) }?;
                let invalid = |error: UnknownEngine| Failure::new(FlashIndexStatus::InvalidArgument, error.to_string());
                EngineOptions {
                    lora_name: lora_name.filter(|name| !name.is_empty()).map(str::to_owned),
                    removed_copies: if settings.removes_last_copy { RemovedCopies::All } else { RemovedCopies::One },
                    replay: if settings.replays { ReplaySupport::Available } else { ReplaySupport::Unavailable },
                    extra_keys: settings.extra_keys,
                    ..EngineOptions::of_engine(name).map_err(invalid)?
                }
            }
        };
        Ok(index.embedded.register(WorkerId(instance), options)?)
    })
}

/// Removes an instance with all of its blocks. No answer has it after the call.
///
/// # Safety
///
/// index is a valid index.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_unregister(index: *const FlashIndex, instance: u64) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        Ok(index.embedded.unregister(WorkerId(instance))?)
    })
}

/// Does a bounded part of the work that changes have deferred, and writes to *is_more, unless NULL, whether more is left. A
/// change does such a part as well; an idle caller frees memory with it.
///
/// # Safety
///
/// index is a valid index; is_more is NULL or points to a bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_maintain(index: *const FlashIndex, is_more: *mut bool) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        let more = index.embedded.maintain()?;
        // SAFETY: by this function's contract.
        unsafe { arguments::write("is_more", is_more, more) }
    })
}
