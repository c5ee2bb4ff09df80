//! Files in the state directory that this process did not write.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use flash_indexer_types::ModelKey;
use flash_indexer_types::hashes::HashForm;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::io::Errno;

use super::{DirectoryError, KEPT, LOCK, SnapshotDirectory, UNFINISHED, lock};
use crate::{DumpError, DumpForm, DumpWriter};

fn dump(out: &mut dyn Write) -> io::Result<()> {
    let mut writer = DumpWriter::start(out, DumpForm::Lines, HashForm::default())?;
    writer.model(&ModelKey::new("m".to_owned(), None), 16)?;
    writer.finish().map(drop)
}

/// A directory with a snapshot of another process, which has the number 0.
fn reopened() -> (tempfile::TempDir, SnapshotDirectory) {
    let folder = tempfile::tempdir().expect("a folder");
    open(&folder).write(dump).expect("written");
    let directory = open(&folder);
    (folder, directory)
}

fn open(folder: &tempfile::TempDir) -> SnapshotDirectory {
    SnapshotDirectory::open(folder.path()).expect("a directory")
}

/// Writes more snapshots than are kept.
fn write_many(directory: &SnapshotDirectory) {
    (0..=KEPT).for_each(|_| drop(write(directory).expect("written")));
}

fn write(directory: &SnapshotDirectory) -> io::Result<PathBuf> {
    directory.write(dump).map(|(snapshot, _)| snapshot.path)
}

fn numbers(directory: &SnapshotDirectory) -> Vec<u64> {
    directory.snapshots().expect("a directory").iter().map(|snapshot| snapshot.number).collect()
}

fn snapshot(folder: &tempfile::TempDir, number: u64) -> PathBuf {
    folder.path().join(format!("snapshot-{number:020}.ndjson.zst"))
}

fn fifo(path: &Path) {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).expect("a FIFO");
}

/// Runs on another thread, so a blocked call fails the test.
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(run()));
    receiver.recv_timeout(Duration::from_secs(10)).expect("it does not block")
}

#[test]
fn a_readable_snapshot_of_another_process_is_removed_and_a_damaged_or_empty_one_as_well() {
    for keep in [|whole: &[u8]| whole.to_vec(), |whole: &[u8]| whole[..whole.len() - 4].to_vec(), |_: &[u8]| Vec::new()]
    {
        let (folder, directory) = reopened();
        let path = snapshot(&folder, 0);
        fs::write(&path, keep(&fs::read(&path).expect("a file"))).expect("written");
        // Like the start of a service.
        let _ = directory.snapshots().expect("a directory")[0].check();
        write_many(&directory);
        assert_eq!(numbers(&directory), [4, 3, 2]);
    }
}

#[test]
fn a_snapshot_of_a_newer_or_an_unknown_format_is_kept_and_logged_once() {
    let newer = br#"{"dump":{"version":2,"changed":true}}"#;
    let compressed = zstd::encode_all(&[newer, &b"\n"[..]].concat()[..], 1).expect("compressed");
    for content in [compressed, b"another format".to_vec()] {
        let (folder, directory) = reopened();
        let path = snapshot(&folder, 0);
        fs::write(&path, &content).expect("written");
        directory.snapshots().expect("a directory")[0].check().expect_err("a newer format");
        write_many(&directory);
        write_many(&directory);
        assert_eq!(numbers(&directory), [8, 7, 6, 0]);
        assert_eq!(fs::read(&path).expect("a file"), content);
        assert_eq!(lock(&directory.known).logged(), [path.as_path()]);
    }
}

#[test]
fn a_snapshot_without_the_right_to_read_it_is_kept_until_it_has_the_right() {
    let (folder, directory) = reopened();
    let path = snapshot(&folder, 0);
    fs::set_permissions(&path, Permissions::from_mode(0o000)).expect("a file");
    if fs::File::open(&path).is_ok() {
        // A privileged user has every right; the next test covers its errors.
        return;
    }
    write_many(&directory);
    assert_eq!(numbers(&directory), [4, 3, 2, 0]);
    assert_eq!(lock(&directory.known).logged(), [path.as_path()]);
    let error = directory.snapshots().expect("a directory")[3].check().expect_err("no right").to_string();
    assert!(error.ends_with("let the user of the service read it, or remove it"), "{error}");

    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a file");
    let directory = {
        drop(directory);
        open(&folder)
    };
    write(&directory).expect("written");
    assert_eq!(numbers(&directory), [5, 4, 3]);
}

#[test]
fn a_snapshot_that_failed_to_be_read_is_kept_unless_its_content_is_the_reason() {
    let failed = |errno: Errno| DumpError::Read(errno.into());
    let damaged = || DumpError::Read(io::Error::other("data corruption detected"));
    for (error, remaining) in [
        (failed(Errno::IO), &[4, 3, 2, 0][..]),
        (DumpError::Open(Errno::ACCESS.into()), &[4, 3, 2, 0]),
        (DumpError::Version(2), &[4, 3, 2, 0]),
        (damaged(), &[4, 3, 2]),
        (DumpError::CutOff, &[4, 3, 2]),
    ] {
        let (folder, directory) = reopened();
        let says = error.to_string();
        lock(&directory.known).checked::<()>(&snapshot(&folder, 0), &Err(error));
        write_many(&directory);
        assert_eq!(numbers(&directory), remaining, "{says}");
    }
}

#[test]
fn a_lock_that_is_not_a_regular_file_is_refused_and_left_as_it_is() {
    let outside = tempfile::NamedTempFile::new().expect("a file");
    fs::write(outside.path(), "content").expect("written");
    let target = outside.path().to_owned();
    let link = move |path: &Path| symlink(&target, path).expect("a symlink");
    let directory = |path: &Path| fs::create_dir(path).expect("a directory");
    for place in [&fifo as &dyn Fn(&Path), &link, &directory] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(LOCK);
        place(&path);
        let opened = folder.path().to_owned();
        let error = in_time(move || SnapshotDirectory::open(&opened)).expect_err("no regular file");
        assert!(matches!(error, DirectoryError::NotRegular { .. }), "{error}");
        let says = format!("{} is not a regular file; remove it", path.display());
        assert!(error.to_string().ends_with(&says), "{error}");
    }
    assert_eq!(fs::read(outside.path()).expect("a file"), b"content");
}

#[test]
fn a_leftover_that_is_not_a_regular_file_is_replaced_and_never_opened() {
    let outside = tempfile::NamedTempFile::new().expect("a file");
    fs::write(outside.path(), "content").expect("written");
    let target = outside.path().to_owned();
    let link = move |path: &Path| symlink(&target, path).expect("a symlink");
    for place in [&fifo as &dyn Fn(&Path), &link] {
        let (folder, directory) = reopened();
        place(&folder.path().join(UNFINISHED));
        let path = in_time(move || write(&directory)).expect("written");
        assert!(fs::symlink_metadata(path).expect("a snapshot").is_file());
    }
    assert_eq!(fs::read(outside.path()).expect("a file"), b"content");

    let (folder, directory) = reopened();
    let leftover = folder.path().join(UNFINISHED);
    fs::create_dir(&leftover).expect("a directory");
    let error = write(&directory).expect_err("a directory").to_string();
    assert!(error.contains(leftover.to_str().expect("text")) && error.ends_with("remove it"), "{error}");
}

#[test]
fn special_files_with_the_name_of_a_snapshot_are_logged_and_stay_below_the_next_number() {
    let (folder, directory) = reopened();
    let link = |path: &Path| symlink("/nowhere", path).expect("a symlink");
    let non_empty = |path: &Path| fs::create_dir_all(path.join("inside")).expect("a directory");
    for (number, place) in [(1, &fifo as &dyn Fn(&Path)), (2, &link), (3, &non_empty)] {
        place(&snapshot(&folder, number));
    }
    let unnumbered = [u64::MAX.to_string(), (u64::MAX - 1).to_string(), format!("1{}", u64::MAX), "old".to_owned()];
    let unnumbered = unnumbered.map(|digits| folder.path().join(format!("snapshot-{digits}.ndjson.zst")));
    for path in &unnumbered {
        fs::copy(snapshot(&folder, 0), path).expect("copied");
    }

    assert_eq!(numbers(&directory), [0]);
    assert_eq!(write(&directory).expect("written"), snapshot(&folder, 4));
    write_many(&directory);
    assert_eq!(numbers(&directory), [8, 7, 6]);
    let mut special = [1, 2, 3].map(|number| snapshot(&folder, number)).to_vec();
    assert!(fs::symlink_metadata(&special[0]).expect("it stays").file_type().is_fifo());
    assert!(fs::symlink_metadata(&special[1]).expect("it stays").is_symlink());
    assert!(special[2].join("inside").exists());
    special.extend(unnumbered);
    special.sort();
    assert_eq!(lock(&directory.known).logged(), special);
}

#[test]
fn no_snapshot_is_written_above_the_highest_number() {
    let (folder, directory) = reopened();
    fs::rename(snapshot(&folder, 0), snapshot(&folder, super::NUMBER_MAX)).expect("renamed");
    let error = write(&directory).expect_err("no number is left").to_string();
    assert!(error.ends_with("is taken; rename or remove the file"), "{error}");
    assert_eq!(numbers(&directory), [super::NUMBER_MAX]);
}
