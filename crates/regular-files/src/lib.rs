//! Opening and bounded reading of files that a configuration names.
//!
//! Only regular files are used: opening a FIFO waits for a writer, and reading a device may never end. A service that reads its
//! tokens, keys or discovery file again would then never see a later version.
//!
//! ```
//! let folder = tempfile::tempdir().expect("a folder");
//! let path = folder.path().join("tokens");
//! std::fs::write(&path, "secret").expect("written");
//! assert_eq!(flash_indexer_regular_files::read_text(&path, 100).expect("a text"), "secret");
//! let error = flash_indexer_regular_files::read_text(&path, 3).expect_err("too large");
//! assert_eq!(error.to_string(), "it exceeds 3 bytes");
//! let error = flash_indexer_regular_files::read_text(folder.path(), 100).expect_err("a directory");
//! assert_eq!(error.to_string(), "it is not a regular file");
//! ```
//!
//! | file | role |
//! |---|---|
//! | `lib.rs` | all of it |

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Treatment of a symlink at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    /// Opens its target: Kubernetes mounts secrets as symlinks.
    Follow,
    /// Fails, with the operating system's error: a user who may write into a directory of data must not choose the file.
    Refuse,
}

/// Failure to read a file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read, is not a regular file, or is not UTF-8.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is larger than the limit.
    #[error("it exceeds {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
}

/// Opens a regular file with these options. It never waits for the other end of a FIFO.
///
/// # Errors
///
/// Returns the error of the operating system, and an error of kind [`io::ErrorKind::InvalidInput`] for anything except a regular file.
pub fn open(path: &Path, options: &mut OpenOptions, symlinks: Symlinks) -> io::Result<File> {
    let flags = match symlinks {
        Symlinks::Follow => OFlags::NONBLOCK,
        Symlinks::Refuse => OFlags::NONBLOCK | OFlags::NOFOLLOW,
    };
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Reads a regular file, or the target of a symlink, of at most `bytes_max` bytes.
///
/// # Errors
///
/// Fails if the file cannot be read, is not a regular file, or is larger.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    read_opened(open(path, OpenOptions::new().read(true), Symlinks::Follow)?, bytes_max)
}

/// Reads an open file to its end, of at most `bytes_max` bytes.
///
/// # Errors
///
/// Fails if the file cannot be read, or is larger.
pub fn read_opened(file: File, bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max { Err(ReadError::TooLarge { bytes_max }) } else { Ok(bytes) }
}

/// Reads a regular file of UTF-8, or the target of a symlink, of at most `bytes_max` bytes.
///
/// # Errors
///
/// Fails if the file cannot be read, is not a regular file, is larger, or is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, ReadError> {
    let text = String::from_utf8(read(path, bytes_max)?);
    Ok(text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    /// Reads on another thread, so a blocking read fails the test.
    fn error_of(path: PathBuf) -> String {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(read_text(&path, 10)));
        let read = receiver.recv_timeout(Duration::from_secs(10)).expect("reading does not block");
        read.expect_err("no text").to_string()
    }

    #[test]
    fn fifos_devices_and_directories_are_errors_and_do_not_block() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("a FIFO");
        symlink("fifo", folder.path().join("link")).expect("a symlink");
        for other in [path, folder.path().join("link"), folder.path().to_owned(), PathBuf::from("/dev/zero")] {
            assert_eq!(error_of(other), "it is not a regular file");
        }
    }

    #[test]
    fn the_limit_counts_bytes_and_text_is_utf8() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "0123456789").expect("written");
        assert_eq!(read_text(&path, 10).expect("a text"), "0123456789");
        fs::write(&path, "0123456789a").expect("written");
        assert_eq!(error_of(path.clone()), "it exceeds 10 bytes");
        fs::write(&path, b"\xff").expect("written");
        assert_eq!(error_of(path), "it is not UTF-8");
    }

    #[test]
    fn a_symlink_is_followed_or_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("target"), "one").expect("written");
        let link = folder.path().join("link");
        symlink("target", &link).expect("a symlink");
        assert_eq!(read_text(&link, 10).expect("a text"), "one");
        open(&link, OpenOptions::new().read(true), Symlinks::Refuse).expect_err("a symlink");
    }
}
