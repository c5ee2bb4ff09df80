//! Bounds of the components of a `tokenizer.json`.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum size of the normalizer, the pre-tokenizer, the post-processor and the decoder, in bytes each. The largest have about
/// 400 KiB, in a normalizer's map of characters. A million small ones would take 70 times their size.
const COMPONENT_BYTES_MAX: usize = 1 << 20;

/// The components other than the model and the added tokens.
#[derive(Deserialize)]
struct Components<'f> {
    #[serde(borrow, default)]
    normalizer: Option<&'f RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'f RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'f RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'f RawValue>,
}

/// Checks the sizes of the components of a file before they are built. A file that is not a tokenizer is left to the library.
pub(super) fn check_components(file: &[u8]) -> Result<(), String> {
    let Ok(components) = serde_json::from_slice::<Components<'_>>(file) else { return Ok(()) };
    let Components { normalizer, pre_tokenizer, post_processor, decoder } = components;
    let named = [
        ("normalizer", normalizer),
        ("pre-tokenizer", pre_tokenizer),
        ("post-processor", post_processor),
        ("decoder", decoder),
    ];
    for (name, component) in named {
        let bytes = component.map_or(0, |component| component.get().len());
        if bytes > COMPONENT_BYTES_MAX {
            return Err(format!(
                "the {name} has {bytes} bytes, more than {COMPONENT_BYTES_MAX}; use the file of the model's publisher"
            ));
        }
    }
    Ok(())
}
