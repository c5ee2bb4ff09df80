//! Snapshots on disk: complete dumps in a directory, of which the newest are kept.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use zstd::stream::write::Encoder;

use crate::{DumpEntry, DumpError, DumpSink, DumpSummary, RankName, RankRecord, Rejection, read_dump};

/// Snapshots that are kept: if the newest is damaged, the one before it is loaded.
const KEPT: usize = 3;
const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".ndjson.zst";
/// Name of a snapshot that is being written.
const UNFINISHED: &str = "unfinished";
const LOCK: &str = "lock";
/// Level at which compressing costs about as much as writing JSON.
const ZSTD_LEVEL: i32 = 1;

/// A directory of snapshots, which one process uses at a time.
///
/// A snapshot is a dump in the form of lines, compressed with zstd and its checksum. It is written under another name, synced
/// and renamed, so a file with the name of a snapshot was complete once.
#[derive(Debug)]
pub struct SnapshotDirectory {
    path: PathBuf,
    /// Locked until the directory is dropped.
    _lock: File,
}

/// Failure to use a directory of snapshots.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory cannot be created, or is not writable.
    #[error(
        "failed to open the state directory {path}: {source}; make it writable for the service, or choose another one"
    )]
    Open {
        /// The directory.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error(
        "failed to lock the state directory {path}: another process uses it; give each replica a directory of its own"
    )]
    InUse {
        /// The directory.
        path: String,
    },
}

/// A snapshot on disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredSnapshot {
    number: u64,
    /// Its file.
    pub path: PathBuf,
}

impl SnapshotDirectory {
    /// Creates the directory if it does not exist, and locks it.
    ///
    /// # Errors
    ///
    /// Fails if the directory is not writable, or another process uses it.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Open { path: path.display().to_string(), source };
        fs::create_dir_all(path).map_err(failed)?;
        let lock = File::create(path.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse { path: path.display().to_string() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// The snapshots, newest first.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system.
    pub fn snapshots(&self) -> io::Result<Vec<StoredSnapshot>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // A pipe would not be read to its end.
            if !entry.file_type()?.is_file() {
                continue;
            }
            let path = entry.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name.and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
            // The next one needs a number as well.
            found.extend(number.filter(|&number| number < u64::MAX).map(|number| StoredSnapshot { number, path }));
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// Writes a snapshot, whose content `write` writes, and removes the oldest ones. If it fails, the former snapshots stay.
    /// Returns the snapshot and its bytes.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system or of `write`.
    pub fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<(StoredSnapshot, u64)> {
        let before = self.snapshots()?;
        let unfinished = self.path.join(UNFINISHED);
        let bytes = write_compressed(&unfinished, write).inspect_err(|_| {
            // The next snapshot replaces it; without it the disk has room again.
            let _ = fs::remove_file(&unfinished);
        })?;
        let number = before.first().map_or(0, |newest| newest.number + 1);
        let path = self.path.join(format!("{PREFIX}{number:020}{SUFFIX}"));
        fs::rename(&unfinished, &path)?;
        // The name is on disk once the directory is.
        File::open(&self.path)?.sync_all()?;
        for old in before.iter().skip(KEPT - 1) {
            fs::remove_file(&old.path)?;
        }
        Ok((StoredSnapshot { number, path }, bytes))
    }
}

impl StoredSnapshot {
    /// Reads the snapshot and checks that it is complete and undamaged, without applying it. Costs one reading of the file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if it was cut off or changed since it was written.
    pub fn check(&self) -> Result<DumpSummary, DumpError> {
        struct Ignored;
        impl DumpSink for Ignored {
            fn rank(&mut self, _: RankRecord) -> Result<(), Rejection> {
                Ok(())
            }

            fn entry(&mut self, _: RankName<'_>, _: DumpEntry) -> Result<(), Rejection> {
                Ok(())
            }
        }
        read_dump(File::open(&self.path).map_err(DumpError::Read)?, &mut Ignored)
    }
}

/// Writes a compressed file, and returns once it is on disk. Returns its bytes.
fn write_compressed(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    let mut encoder = Encoder::new(BufWriter::new(File::create(path)?), ZSTD_LEVEL)?;
    encoder.include_checksum(true)?;
    write(&mut encoder)?;
    let file = encoder.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

#[cfg(test)]
mod tests {
    use flash_indexer_types::ModelKey;
    use flash_indexer_types::hashes::HashForm;

    use super::*;
    use crate::{DumpForm, DumpWriter};

    fn dump(out: &mut dyn Write) -> io::Result<()> {
        let mut writer = DumpWriter::start(out, DumpForm::Lines, HashForm::default())?;
        writer.model(&ModelKey::new("m".to_owned(), None), 16)?;
        writer.finish().map(drop)
    }

    fn names(directory: &SnapshotDirectory) -> Vec<u64> {
        directory.snapshots().expect("a directory").iter().map(|snapshot| snapshot.number).collect()
    }

    #[test]
    fn the_newest_snapshots_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = SnapshotDirectory::open(folder.path()).expect("a directory");
        for _ in 0..KEPT + 2 {
            directory.write(dump).expect("written");
        }
        assert_eq!(names(&directory), [4, 3, 2]);
        assert_eq!(directory.snapshots().expect("a directory")[0].check().expect("undamaged").ranks, 0);
    }

    #[test]
    fn a_snapshot_that_fails_leaves_the_former_ones_and_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = SnapshotDirectory::open(folder.path()).expect("a directory");
        directory.write(dump).expect("written");
        let full = |out: &mut dyn Write| {
            out.write_all(b"{\"dump\":")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        assert_eq!(directory.write(full).expect_err("full").kind(), io::ErrorKind::StorageFull);
        assert_eq!(names(&directory), [0]);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "a snapshot and the lock");
    }

    #[test]
    fn a_directory_has_one_process_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = SnapshotDirectory::open(folder.path()).expect("a directory");
        assert!(matches!(SnapshotDirectory::open(folder.path()), Err(DirectoryError::InUse { .. })));
        drop(first);
        SnapshotDirectory::open(folder.path()).expect("free again");
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_found_or_has_no_effect() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = SnapshotDirectory::open(folder.path()).expect("a directory");
        let (snapshot, bytes) = directory.write(dump).expect("written");
        let whole = fs::read(&snapshot.path).expect("a file");
        assert_eq!(whole.len() as u64, bytes);
        let is_undamaged = |content: &[u8]| {
            fs::write(&snapshot.path, content).expect("written");
            snapshot.check().is_ok()
        };
        assert!(is_undamaged(&whole));
        for length in 0..whole.len() {
            assert!(!is_undamaged(&whole[..length]), "cut to {length} of {bytes} bytes");
        }
        let dump = zstd::decode_all(&whole[..]).expect("compressed");
        let mut found = 0;
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match is_undamaged(&flipped) {
                // The header of a frame has bits that readers ignore.
                true => assert_eq!(zstd::decode_all(&flipped[..]).expect("compressed"), dump, "bit {bit}"),
                false => found += 1,
            }
        }
        assert!(found > whole.len() * 7, "{found} of {} bits", whole.len() * 8);
    }
}
