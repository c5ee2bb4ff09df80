//! A configuration file that is read again when it changes.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use flash_indexer_regular_files::{self as regular_files, ReadError};

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Parsed content of a configuration file.
pub trait FileContent: PartialEq + Sized {
    /// Name of the file in errors.
    const NAME: &'static str;
    /// Remedy for a file that cannot be read.
    const REMEDY: &'static str;
    /// Failure to parse the text.
    type Error: Error + Send + Sync + 'static;

    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// Fails if the text is not in the expected form.
    fn parse(text: &str) -> Result<Self, Self::Error>;
}

/// The content of a file, replaced entirely when the file changes.
///
/// Consistency: a request is checked against one version of the file. A version that cannot be read leaves the previous
/// one in force.
#[derive(Debug)]
pub struct ConfigFile<T> {
    path: PathBuf,
    content: ArcSwap<T>,
}

/// Failure to load a configuration file.
#[derive(Debug, thiserror::Error)]
#[error("failed to load the {name} {}: {cause}", .path.display())]
pub struct LoadError {
    name: &'static str,
    path: PathBuf,
    cause: LoadCause,
}

#[derive(Debug, thiserror::Error)]
enum LoadCause {
    #[error("{error}; {remedy}")]
    Read { error: io::Error, remedy: &'static str },
    #[error("it exceeds {FILE_BYTES_MAX} bytes; remove unused entries")]
    TooLarge,
    #[error("{0}")]
    Content(Box<dyn Error + Send + Sync>),
}

impl<T: FileContent> ConfigFile<T> {
    /// Loads a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is invalid.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { path: path.to_owned(), content: ArcSwap::from_pointee(read(path)?) })
    }

    /// Reads the file again. Returns whether the content has changed. It blocks on the file system.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is invalid. The previous content stays in force.
    pub fn refresh(&self) -> Result<bool, LoadError> {
        let content = read(&self.path)?;
        let has_changed = **self.content.load() != content;
        if has_changed {
            self.content.store(Arc::new(content));
        }
        Ok(has_changed)
    }

    /// The content as of the last read.
    pub(crate) fn content(&self) -> Guard<Arc<T>> {
        self.content.load()
    }
}

fn read<T: FileContent>(path: &Path) -> Result<T, LoadError> {
    let text = regular_files::read_text(path, FILE_BYTES_MAX).map_err(|error| match error {
        ReadError::Io(error) => LoadCause::Read { error, remedy: T::REMEDY },
        ReadError::TooLarge { .. } => LoadCause::TooLarge,
    });
    let content = text.and_then(|text| T::parse(&text).map_err(|error| LoadCause::Content(error.into())));
    content.map_err(|cause| LoadError { name: T::NAME, path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Text(String);

    impl FileContent for Text {
        const NAME: &'static str = "text";
        const REMEDY: &'static str = "write it";
        type Error = Infallible;

        fn parse(text: &str) -> Result<Self, Infallible> {
            Ok(Self(text.to_owned()))
        }
    }

    /// Reads a file again on another thread, so a blocked read fails the test.
    fn refresh(file: &Arc<ConfigFile<Text>>) -> Result<bool, LoadError> {
        let (sender, receiver) = mpsc::channel();
        let file = Arc::clone(file);
        std::thread::spawn(move || sender.send(file.refresh()));
        receiver.recv_timeout(Duration::from_secs(10)).expect("reading the file does not block")
    }

    #[test]
    fn a_fifo_or_a_device_in_the_place_of_a_file_is_an_error_until_a_file_is_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        fs::write(&path, "one").expect("written");
        let file = Arc::new(ConfigFile::<Text>::load(&path).expect("a file"));
        let fifo = |path: &Path| mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).map_err(io::Error::from);
        let device = |path: &Path| symlink("/dev/zero", path);
        let directory = |path: &Path| fs::create_dir(path);
        for (at, place) in [&fifo as &dyn Fn(&Path) -> io::Result<()>, &device, &directory].into_iter().enumerate() {
            fs::remove_file(&path).expect("removed");
            place(&path).expect("a special file");
            let error = refresh(&file).expect_err("no regular file").to_string();
            assert_eq!(
                error,
                format!("failed to load the text {}: it is not a regular file; write it", path.display())
            );
            let kept = file.content().0.clone();
            fs::write(folder.path().join("next"), format!("{kept}, {at}")).expect("written");
            if path.is_dir() {
                fs::remove_dir(&path).expect("removed");
            }
            fs::rename(folder.path().join("next"), &path).expect("renamed");
            assert!(refresh(&file).expect("a file"), "the file is read again");
            assert_eq!(file.content().0, format!("{kept}, {at}"));
        }
    }

    #[test]
    fn a_symlink_to_a_file_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("target"), "one").expect("written");
        symlink("target", folder.path().join("link")).expect("a symlink");
        assert_eq!(ConfigFile::<Text>::load(&folder.path().join("link")).expect("a file").content().0, "one");
    }
}
