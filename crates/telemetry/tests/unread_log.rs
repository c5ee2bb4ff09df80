//! A panic while the log is not read, in a separate process.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use flash_indexer_telemetry::log::{BUFFERED_LINES_MAX, log_panics, start_writer};
use flash_indexer_test_support::wait_for;

/// Set in the process that panics.
const ROLE: &str = "FLASH_INDEXER_TEST_UNREAD_LOG";
const PATIENCE: Duration = Duration::from_secs(30);
const EXIT_CODE: i32 = 7;

#[test]
fn a_panic_does_not_wait_for_a_log_that_nothing_reads() {
    if std::env::var_os(ROLE).is_some() {
        panic_beside_a_full_pipe();
    }
    let test = std::env::current_exe().expect("a path");
    let mut process = Command::new(test)
        .args(["--exact", "a_panic_does_not_wait_for_a_log_that_nothing_reads", "--nocapture"])
        .env(ROLE, "1")
        .env("RUST_BACKTRACE", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let exited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for("the end of the process", PATIENCE, || process.try_wait().expect("a status"))
    }));
    // It has ended if there is a status.
    let _ = process.kill();
    assert_eq!(exited.expect("the panicking thread ends").code(), Some(EXIT_CODE));
}

/// Exits once a thread that panicked has ended, while the pipe at standard error is full.
fn panic_beside_a_full_pipe() -> ! {
    let (writer, guard) = start_writer(std::io::stderr());
    let mut lines = writer.clone();
    tracing_subscriber::fmt().with_writer(writer).init();
    log_panics();
    // More than the capacity of the pipe and the buffer.
    let line = [b'x'; 1_024];
    for _ in 0..2 * BUFFERED_LINES_MAX {
        lines.write_all(&line).expect("the buffer takes lines, or drops them");
    }
    wait_for("a full buffer", PATIENCE, || (lines.error_counter().dropped_lines() > 0).then_some(()));
    let panicking = std::thread::Builder::new().name("panicking".to_owned()).spawn(|| panic!("a bug"));
    panicking.expect("a thread").join().expect_err("it panicked");
    std::mem::forget(guard);
    std::process::exit(EXIT_CODE)
}
