//! Fields of known events that this version does not decode.

use std::collections::BTreeSet;

use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_wire::UnknownField;

use super::ListenerDecoder;
use crate::log_listener;

/// Limit of the unknown fields that are counted in one stream.
const STREAM_FIELDS_MAX: usize = 64;

/// Unknown fields of one stream, by type of the event and name.
pub(super) type UnknownFields = BTreeSet<(&'static str, String)>;

impl ListenerDecoder {
    /// Counts and logs the unknown fields that the stream has not had before.
    pub(super) fn record_unknown_fields(&mut self, found: Vec<UnknownField<'_>>) {
        for UnknownField { event, name } in found {
            let field = (event, name.to_string());
            if self.unknown_fields.contains(&field) {
                continue;
            }
            if self.unknown_fields.len() >= STREAM_FIELDS_MAX {
                self.metrics.limit_reached(Limit::UnknownFields);
                continue;
            }
            self.metrics.unknown_field(event);
            log_listener!(info, self.listener, event, field = field.1.as_str(), "unknown field of an event ignored");
            self.unknown_fields.insert(field);
        }
    }
}
