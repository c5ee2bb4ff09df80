//! Recorded data of the repository, decompressed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Suffix of compressed files.
const COMPRESSED: &str = "zst";

/// Folder with the decompressed files of the repository's `testdata/`.
///
/// The first call decompresses them, about 16 MB, into the folder of the test binaries; later calls reuse them. Several
/// processes may call it at the same time.
///
/// # Panics
///
/// When a file cannot be read or written.
#[must_use]
pub fn testdata() -> PathBuf {
    let compressed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    decompressed(&compressed).unwrap_or_else(|error| panic!("failed to decompress {}: {error}", compressed.display()))
}

fn decompressed(compressed: &Path) -> io::Result<PathBuf> {
    let mut files = Vec::new();
    list(compressed, &mut files)?;
    // The folder's name depends on the files' sizes and modification times.
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
        let inside = file.strip_prefix(compressed).expect("it was listed in that folder").with_extension("");
        let path = partial.path().join(inside);
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
        zstd::stream::copy_decode(File::open(file)?, File::create(path)?)?;
    }
    match fs::rename(partial.path(), &target) {
        Ok(()) => drop(partial.keep()),
        // Another process created it first.
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
