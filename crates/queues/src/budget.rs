//! Default of the byte budget: a part of the memory that this process may use.

use flash_indexer_telemetry::memory::memory_share;

/// Smallest budget, in bytes: some messages of the largest size.
pub const QUEUE_BYTES_MIN: usize = 64 << 20;
/// Largest default of the budget, in bytes.
const DEFAULT_BYTES_MAX: usize = 4 << 30;
/// The default is the memory divided by this number.
const MEMORY_SHARE: usize = 4;

/// Default of the byte budget: a quarter of the memory that the control group, or else the machine, has; at least
/// [`QUEUE_BYTES_MIN`] and at most 4 GiB.
pub fn default_queue_bytes() -> usize {
    memory_share(MEMORY_SHARE, QUEUE_BYTES_MIN..=DEFAULT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_quarter_of_the_memory_within_limits() {
        assert!((QUEUE_BYTES_MIN..=DEFAULT_BYTES_MAX).contains(&default_queue_bytes()));
    }
}
