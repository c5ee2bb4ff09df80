//! Snapshots on disk: complete dumps in a directory. The newest are kept.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flash_indexer_regular_files::{self as regular_files, Symlinks};
use tracing::warn;
use zstd::stream::write::Encoder;

use crate::known_snapshots::KnownSnapshots;
use crate::{DumpEntry, DumpError, DumpSink, DumpSummary, RankName, RankRecord, Rejection, read_dump};

/// Snapshots that are kept: if the newest is damaged, the one before it is loaded.
const KEPT: usize = 3;
/// Highest number of a snapshot. A file with a higher number is not a snapshot, so numbers are left for the successors of each snapshot.
const NUMBER_MAX: u64 = u64::MAX / 2;
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
///
/// Only regular files are opened. Anything else with the name of a snapshot is skipped, logged once, and not removed.
#[derive(Debug)]
pub struct SnapshotDirectory {
    path: PathBuf,
    known: Arc<Mutex<KnownSnapshots>>,
    /// Locked until the directory is dropped.
    lock: File,
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
    /// The lock is a FIFO, a symlink, a directory or the like.
    #[error("failed to lock the state directory: {path} is not a regular file; remove it")]
    NotRegular {
        /// The lock.
        path: String,
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
#[derive(Debug, Clone)]
pub struct StoredSnapshot {
    number: u64,
    /// Its file.
    pub path: PathBuf,
    known: Arc<Mutex<KnownSnapshots>>,
}

/// Content of the directory.
struct Listing {
    /// Newest first.
    snapshots: Vec<StoredSnapshot>,
    /// Number above those of all snapshots, and of other things with the name of one.
    next: u64,
}

impl SnapshotDirectory {
    /// Creates the directory if it does not exist, and locks it.
    ///
    /// # Errors
    ///
    /// Fails if the directory is not writable, another process uses it, or its lock is not a regular file.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Open { path: path.display().to_string(), source };
        fs::create_dir_all(path).map_err(failed)?;
        let lock_path = path.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let lock =
            regular_files::open(&lock_path, &mut options, Symlinks::Refuse).map_err(|source| {
                match is_other(&lock_path) {
                    true => DirectoryError::NotRegular { path: lock_path.display().to_string() },
                    false => failed(source),
                }
            })?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), known: Arc::default(), lock }),
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
        Ok(self.list()?.snapshots)
    }

    fn list(&self) -> io::Result<Listing> {
        let (mut snapshots, mut next) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let path = entry.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(digits) = name.and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)) else { continue };
            let Some(number) = digits.parse().ok().filter(|&number| number <= NUMBER_MAX) else {
                if lock(&self.known).is_first_log(&path) {
                    warn!(
                        path = %path.display(), number_max = NUMBER_MAX,
                        "skipped a file of the state directory: its name has no valid number; rename or remove it"
                    );
                }
                continue;
            };
            next = next.max(number + 1);
            if entry.file_type()?.is_file() {
                snapshots.push(StoredSnapshot { number, path, known: Arc::clone(&self.known) });
            } else if lock(&self.known).is_first_log(&path) {
                warn!(
                    path = %path.display(),
                    "skipped a snapshot: it is not a regular file; replace it with the snapshot itself, or remove it"
                );
            }
        }
        snapshots.sort_unstable_by(|a, b| (b.number, &b.path).cmp(&(a.number, &a.path)));
        Ok(Listing { snapshots, next })
    }

    /// Writes a snapshot with the content from `write`, and removes the oldest ones. If it fails, the earlier snapshots stay.
    /// Returns the snapshot and its bytes.
    ///
    /// A snapshot also stays if this process cannot read it, or if a newer program wrote it. It does not count as a kept one.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system or of `write`.
    pub fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<(StoredSnapshot, u64)> {
        let unfinished = self.path.join(UNFINISHED);
        self.check_lock()?;
        let bytes = write_compressed(&unfinished, write).inspect_err(|_| {
            // The next snapshot replaces it. Its removal frees disk space.
            let _ = fs::remove_file(&unfinished);
        })?;
        self.check_lock()?;
        // Listed after the content is written, which can take minutes: renaming must not replace a file that was added meanwhile.
        let Listing { snapshots: before, next: number } = self.list()?;
        if number > NUMBER_MAX {
            let cause = format!("failed to number a snapshot: {NUMBER_MAX} is taken; rename or remove the file");
            return Err(io::Error::other(cause));
        }
        let path = self.path.join(format!("{PREFIX}{number:020}{SUFFIX}"));
        fs::rename(&unfinished, &path)?;
        // The name is on disk once the directory is.
        File::open(&self.path)?.sync_all()?;
        self.remove_oldest(&before)?;
        lock(&self.known).wrote(&path);
        Ok((StoredSnapshot { number, path, known: Arc::clone(&self.known) }, bytes))
    }

    /// Fails if the lock is no longer the locked file: another process could lock the new one, and use the directory.
    fn check_lock(&self) -> io::Result<()> {
        let path = self.path.join(LOCK);
        let (held, found) = (self.lock.metadata()?, fs::symlink_metadata(&path));
        match found {
            Ok(found) if (found.dev(), found.ino()) == (held.dev(), held.ino()) => Ok(()),
            _ => Err(io::Error::other(format!(
                "{} was removed or replaced, so another process may use the directory; restart this one",
                path.display()
            ))),
        }
    }

    /// Removes the oldest snapshots, so that [`KEPT`] stay, including a new one. Returns the first error after trying each.
    fn remove_oldest(&self, before: &[StoredSnapshot]) -> io::Result<()> {
        let mut known = lock(&self.known);
        known.retain(before.iter().map(|snapshot| snapshot.path.as_path()));
        let (mut kept, mut result) = (1, Ok(()));
        for StoredSnapshot { path, .. } in before {
            if let Some(reason) = known.reason_to_keep(path) {
                if known.is_first_log(path) {
                    warn!(
                        path = %path.display(), reason,
                        "keeping a snapshot that this service cannot read, besides the newest {KEPT}; make it readable, use the \
                         version that wrote it, or remove it"
                    );
                }
            } else if kept < KEPT {
                kept += 1;
            } else if let Err(error) = fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                result = result.and(Err(with_path("remove", path, &error)));
            }
        }
        result
    }
}

fn lock(known: &Mutex<KnownSnapshots>) -> MutexGuard<'_, KnownSnapshots> {
    // A panic leaves no part of an update.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_path(verb: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("failed to {verb} {}: {error}; remove it", path.display()))
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
        let file =
            regular_files::open(&self.path, OpenOptions::new().read(true), Symlinks::Refuse).map_err(DumpError::Open);
        let checked = file.and_then(|file| read_dump(file, &mut Ignored));
        lock(&self.known).checked(&self.path, &checked);
        checked
    }
}

/// Whether something other than a regular file has this path. A symlink is one, whatever its target is.
fn is_other(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.is_file())
}

/// Writes a compressed file, and returns once it is on disk. Returns its bytes.
fn write_compressed(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    let mut encoder = Encoder::new(BufWriter::new(create_new(path)?), ZSTD_LEVEL)?;
    encoder.include_checksum(true)?;
    write(&mut encoder)?;
    let file = encoder.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Creates a file in place of a leftover. A leftover is never opened: a symlink leads to a file of another owner, and a FIFO blocks.
fn create_new(path: &Path) -> io::Result<File> {
    let is_other = is_other(path);
    match fs::remove_file(path) {
        Ok(()) if is_other => {
            warn!(path = %path.display(), "removed a leftover of an unfinished snapshot that was not a regular file");
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(with_path("replace", path, &error)),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod other_files_tests;

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
        let again = SnapshotDirectory::open(folder.path()).expect("free again");
        again.write(dump).expect("written");
        fs::remove_file(folder.path().join(LOCK)).expect("removed");
        let other = SnapshotDirectory::open(folder.path()).expect("the lock is a new one");
        let error = again.write(dump).expect_err("the other one uses the directory");
        assert!(error.to_string().contains("was removed or replaced"), "{error}");
        other.write(dump).expect("written");
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
