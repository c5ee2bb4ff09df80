//! Recorded data of the repository, unpacked.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Suffix of compressed files.
const COMPRESSED: &str = "zst";

/// Folder with the files of the repository's `testdata/`, uncompressed.
///
/// The first test that calls it unpacks them, about 16 MB, beside the test binaries; later calls find them there. Tests of
/// several processes may call it at once.
///
/// # Panics
///
/// When a file cannot be read or written.
#[must_use]
pub fn testdata() -> PathBuf {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    unpacked(&packed).unwrap_or_else(|error| panic!("failed to unpack {}: {error}", packed.display()))
}

fn unpacked(packed: &Path) -> io::Result<PathBuf> {
    let mut files = Vec::new();
    list(packed, &mut files)?;
    // A name of its own for each content: sizes and times of change.
    let mut version = 0_u64;
    for file in &files {
        let metadata = fs::metadata(file)?;
        let changed = metadata.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mark = metadata.len() ^ changed.as_nanos() as u64;
        version = version.rotate_left(7) ^ mark.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let binary = std::env::current_exe()?;
    let beside = binary.parent().expect("a file lies in a folder");
    let target = beside.join(format!("testdata-{version:016x}"));
    if target.is_dir() {
        return Ok(target);
    }
    let partial = TempDir::new_in(beside)?;
    for file in &files {
        let inside = file.strip_prefix(packed).expect("it was listed there").with_extension("");
        let path = partial.path().join(inside);
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
        zstd::stream::copy_decode(File::open(file)?, File::create(path)?)?;
    }
    match fs::rename(partial.path(), &target) {
        Ok(()) => drop(partial.keep()),
        // Another process was first.
        Err(_) if target.is_dir() => {}
        Err(error) => return Err(error),
    }
    Ok(target)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == COMPRESSED) {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(())
}
