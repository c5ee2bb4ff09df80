//! Limits that errors name.

/// Maximum length of a model's name, in bytes.
pub const MODEL_NAME_BYTES_MAX: usize = 1024;
/// Maximum bytes of a piece, or of a text that cannot be cut. About a million tokens, and 600 MiB of memory.
pub const UNCUT_BYTES_MAX: usize = 4 << 20;
/// Maximum size of a message to or from a tokenizer service, in bytes. A prompt of a million tokens takes about 5 MiB each way.
pub const SERVICE_MESSAGE_BYTES_MAX: usize = 64 << 20;
