//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `1000000`, `64MiB`, `2GB`, `512 KiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
        let bytes = unit.and_then(|&(_, bytes)| number.parse::<u64>().ok()?.checked_mul(bytes));
        let size = bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|&bytes| bytes > 0);
        size.map(Self).ok_or_else(|| "expected a size such as 512MiB, 2GB or 1000000 (bytes)".to_owned())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes_as_people_write_them() {
        for (text, bytes) in [("1", 1), ("2kb", 2_000), ("3 KiB", 3_072), ("64MiB", 64 << 20), ("2GB", 2_000_000_000)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "0", "MiB", "-1", "1.5GiB", "3 parsecs", "99999999999999999999", "9999999999TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
