//! Log events of the service, as fields.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::OnceLock;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A logged event: its level, and its fields with the message among them.
#[derive(Debug, Clone)]
pub(crate) struct LogEvent {
    pub(crate) level: Level,
    pub(crate) fields: BTreeMap<&'static str, String>,
}

impl LogEvent {
    pub(crate) fn message(&self) -> &str {
        self.fields.get("message").map_or("", String::as_str)
    }
}

/// Every event that a test of this program may ask for, down to `debug`. Threads of the service log, so there is one
/// subscriber for the whole program.
struct Captured(&'static Mutex<Vec<LogEvent>>);

fn events() -> &'static Mutex<Vec<LogEvent>> {
    static EVENTS: OnceLock<Mutex<Vec<LogEvent>>> = OnceLock::new();
    EVENTS.get_or_init(Mutex::default)
}

/// Captures events from here on.
pub(crate) fn capture() {
    static CAPTURING: OnceLock<()> = OnceLock::new();
    CAPTURING.get_or_init(|| {
        tracing::subscriber::set_global_default(Captured(events())).expect("no other subscriber");
    });
}

/// The captured events with this value in this field, in order.
pub(crate) fn logged(field: &str, value: &str) -> Vec<LogEvent> {
    let has = |event: &&LogEvent| event.fields.get(field).is_some_and(|found| found == value);
    events().lock().iter().filter(has).cloned().collect()
}

impl Subscriber for Captured {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("flash_indexer") && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        self.0.lock().push(LogEvent { level: *event.metadata().level(), fields: fields.0 });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
