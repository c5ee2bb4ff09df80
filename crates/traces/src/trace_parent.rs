//! The trace context that a caller sends, and the outgoing one (W3C Trace Context).

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;

use crate::stages::is_enabled;

const TRACE_PARENT: &str = "traceparent";
const TRACE_STATE: &str = "tracestate";

/// Longest `tracestate` that is kept, in bytes. Every span of a request has a copy. The specification requires no more.
const TRACE_STATE_BYTES_MAX: usize = 512;

/// The span of a caller, the parent of a request's span; none if the caller sent none.
#[derive(Debug, Clone, Default)]
pub struct TraceParent(pub(crate) Option<Context>);

impl TraceParent {
    /// Reads the context of a caller from headers. `headers` gives all values of a header. An invalid or repeated context is
    /// treated as none.
    pub fn read<'h, V: Iterator<Item = &'h str>>(headers: impl Fn(&'static str) -> V) -> Self {
        let mut parents = headers(TRACE_PARENT);
        let (Some(parent), None) = (parents.next().map(str::trim), parents.next()) else { return Self(None) };
        if !is_well_formed(parent) {
            return Self(None);
        }
        let state = headers(TRACE_STATE).collect::<Vec<_>>().join(",");
        let state = if state.len() > TRACE_STATE_BYTES_MAX { String::new() } else { state };
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers { parent, state });
        Self(context.has_active_span().then_some(context))
    }

    /// This parent, or another one if there is none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0.or(other.0))
    }
}

/// Whether the parts of a `traceparent` have their lengths and digits. The propagator takes shorter ids.
fn is_well_formed(parent: &str) -> bool {
    const DASHES: [usize; 3] = [2, 35, 52];
    const BYTES: usize = 55;
    let is_part = |(at, byte): (usize, u8)| match DASHES.contains(&at) {
        true => byte == b'-',
        false => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    // A later version may have further parts.
    let end = parent.as_bytes().get(BYTES);
    parent.len() >= BYTES && end.is_none_or(|end| *end == b'-') && parent.bytes().take(BYTES).enumerate().all(is_part)
}

struct Headers<'h> {
    parent: &'h str,
    state: String,
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACE_PARENT => Some(self.parent),
            TRACE_STATE => Some(&self.state),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACE_PARENT, TRACE_STATE]
    }
}

/// Names and values of the headers that continue the trace of the current request in a call to another service; none without a
/// trace.
#[must_use]
pub fn outgoing_headers() -> Vec<(&'static str, String)> {
    let mut headers = OutgoingHeaders(Vec::new());
    if is_enabled() {
        Context::map_current(|context| TraceContextPropagator::new().inject_context(context, &mut headers));
    }
    headers.0
}

struct OutgoingHeaders(Vec<(&'static str, String)>);

impl Injector for OutgoingHeaders {
    fn set(&mut self, key: &str, value: String) {
        let name = if key == TRACE_PARENT { TRACE_PARENT } else { TRACE_STATE };
        if !value.is_empty() {
            self.0.push((name, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(parents: &[&str], states: &[&str]) -> Option<(String, bool, String)> {
        let headers = |name| if name == TRACE_PARENT { parents } else { states };
        let context = TraceParent::read(|name| headers(name).iter().copied()).0?;
        let span = context.span();
        let span = span.span_context();
        Some((format!("{}-{}", span.trace_id(), span.span_id()), span.is_sampled(), span.trace_state().header()))
    }

    #[test]
    fn a_context_is_read_as_the_specification_has_it() {
        let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        let valid = |is_sampled, state: &str| Some((ids.to_owned(), is_sampled, state.to_owned()));
        assert_eq!(read(&[PARENT], &[]), valid(true, ""));
        assert_eq!(read(&[&format!("00-{ids}-00")], &[]), valid(false, ""));
        assert_eq!(read(&[&format!(" 00-{ids}-03 ")], &[]), valid(true, ""), "unknown flags");
        assert_eq!(read(&[&format!("cc-{ids}-01-more")], &[]), valid(true, ""), "a later version");
        assert_eq!(read(&[PARENT], &["a=1", "b=2"]), valid(true, "a=1,b=2"));
        let long = format!("a={}", "x".repeat(TRACE_STATE_BYTES_MAX));
        assert_eq!(read(&[PARENT], &[&long]), valid(true, ""), "the trace is continued without it");
        for invalid in [
            "",
            "00",
            "00-4bf9-00f0-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(&[invalid], &[]), None, "{invalid}");
        }
        assert_eq!(read(&[PARENT, PARENT], &[]), None, "two of them");
        assert_eq!(read(&[], &["a=1"]), None);
    }
}
