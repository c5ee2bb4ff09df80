//! How much memory the process has.

/// Bytes of memory that the process has resident, as the kernel counts them; none where `/proc` is not.
///
/// An index's share is the growth while it was filled. What the allocator keeps for itself counts, as
/// it does on a real machine; what it had kept from earlier frees and now hands out again does not, so a clean figure
/// needs a process that has done nothing else.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Said where [`resident_bytes`] knows nothing.
pub const RESIDENT_UNAVAILABLE: &str = "unavailable: this system has no /proc/self/status";
