//! Tokens and local hashes of a request, as a repeated field or as bytes.

use std::borrow::Cow;

use flash_indexer_api::LittleEndian;
use tonic::Status;

/// A list that a request may give in two forms.
pub(super) struct List<'r, N: Clone> {
    pub(super) repeated: Cow<'r, [N]>,
    pub(super) bytes: &'r [u8],
    /// Names of both fields.
    pub(super) names: [&'static str; 2],
}

impl<'r> List<'r, u32> {
    pub(super) fn of_tokens(token_ids: &'r [u32], token_bytes: &'r [u8]) -> Self {
        Self { repeated: token_ids.into(), bytes: token_bytes, names: ["token_ids", "token_bytes"] }
    }
}

impl<'r, N: LittleEndian + Clone> List<'r, N> {
    /// The numbers, of the field that is given.
    pub(super) fn read(self) -> Result<Cow<'r, [N]>, Status> {
        let [repeated, bytes] = self.names;
        if self.bytes.is_empty() {
            return Ok(self.repeated);
        }
        if !self.repeated.is_empty() {
            let message = format!("{repeated} and {bytes} are two forms of one list: give one of them");
            return Err(Status::invalid_argument(message));
        }
        let numbers = N::read_list(self.bytes).ok_or_else(|| {
            let (length, width) = (self.bytes.len(), N::BYTES);
            let message = format!(
                "{bytes} has {length} bytes, which is not a multiple of {width}: send each number as {width} bytes, \
                 little-endian"
            );
            Status::invalid_argument(message)
        })?;
        Ok(numbers.into())
    }
}
