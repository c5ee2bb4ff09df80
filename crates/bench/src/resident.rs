//! Resident memory of the process.

/// Resident memory of the process in bytes, as the kernel reports it; none on systems without `/proc`.
///
/// An index's share is the growth while it is filled. It includes the allocator's own memory, as on a real machine. It
/// does not include memory that the allocator reuses from earlier frees, so a precise figure needs a fresh process.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Note for reports where [`resident_bytes`] is none.
pub const RESIDENT_UNAVAILABLE: &str = "unavailable: this system has no /proc/self/status";
