//! Tokens and local hashes of a request, as a repeated field or as bytes.

use std::borrow::Cow;

use flash_indexer_api::LittleEndian;
use tonic::Status;

/// The numbers of a list that a request may give in two fields, from the one that is given. `names` are those of both fields.
pub(super) fn read_list<'r, N: LittleEndian + Clone>(
    repeated: Cow<'r, [N]>,
    bytes: &[u8],
    names: [&'static str; 2],
) -> Result<Cow<'r, [N]>, Status> {
    let [repeated_name, bytes_name] = names;
    if bytes.is_empty() {
        return Ok(repeated);
    }
    if !repeated.is_empty() {
        let message = format!("{repeated_name} and {bytes_name} are two forms of one list: give one of them");
        return Err(Status::invalid_argument(message));
    }
    let numbers = N::read_list(bytes).ok_or_else(|| {
        let (length, width) = (bytes.len(), N::BYTES);
        let message = format!(
            "{bytes_name} has {length} bytes, which is not a multiple of {width}: send each number as {width} bytes, \
             little-endian"
        );
        Status::invalid_argument(message)
    })?;
    Ok(numbers.into())
}

/// [`read_list`] of tokens.
pub(super) fn read_tokens<'r>(token_ids: &'r [u32], token_bytes: &[u8]) -> Result<Cow<'r, [u32]>, Status> {
    read_list(token_ids.into(), token_bytes, ["token_ids", "token_bytes"])
}
