//! The log line of a panic.
//!
//! The only test of its process: `tracing` caches whether a log line has a subscriber, and a thread without a
//! subscriber that logs the line first would cache that there is none.

use std::io;
use std::sync::Arc;

use flash_indexer_telemetry::log::log_panics;
use flash_indexer_telemetry::metrics::{MetricNames, Metrics};
use flash_indexer_telemetry::supervision::{ThreadKind, guarded};
use parking_lot::Mutex;

/// Appends the log to a buffer.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_is_counted_and_logged_with_its_thread_and_its_message() {
    let metrics = Metrics::new(MetricNames::Own);
    let log = Buffer::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    log_panics();
    let returned = tracing::subscriber::with_default(subscriber, || {
        guarded(&metrics, ThreadKind::Writer, "writer-3", || -> u32 { panic!("index out of bounds") })
    });
    assert_eq!(returned, None);
    assert_eq!(metrics.panics(), [("writer", 1)].into());
    let log = String::from_utf8(log.0.lock().clone()).expect("a log in UTF-8");
    let line = log.lines().next().expect("a line");
    assert!(line.contains("ERROR") && line.contains("panic=\"index out of bounds\""), "{line}");
    assert!(line.contains("panic_log.rs:"), "the location: {line}");
    let line = log.lines().find(|line| line.contains("report this bug")).expect("a line of the supervisor");
    assert!(line.contains("ERROR") && line.contains("thread panicked; report this bug with the log"), "{line}");
    assert!(line.contains("thread=\"writer-3\"") && line.contains("panic=\"index out of bounds\""), "{line}");
}
