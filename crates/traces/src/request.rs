//! The span of a request.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use opentelemetry::context::{FutureExt, WithContext};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use crate::stages;
use crate::trace_parent::TraceParent;

/// Creates the spans of requests. Clones share its exporter.
#[derive(Debug, Clone)]
pub struct Tracer(SdkTracer);

/// Whether a request without a caller's context may begin a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// It may: the sampler decides.
    Sampled,
    /// It never begins a trace. An example is a probe.
    Never,
}

impl Tracer {
    /// A tracer whose spans a provider samples and exports.
    #[must_use]
    pub fn new(provider: &SdkTracerProvider) -> Self {
        stages::enable();
        let scope = InstrumentationScope::builder("flash-indexer").with_version(env!("CARGO_PKG_VERSION"));
        Self(provider.tracer_with_scope(scope.build()))
    }

    /// The span of a request that began at this time, or now: as a part of its caller's trace, or as its own trace. None if it is not
    /// sampled.
    #[must_use]
    pub fn request(&self, parent: &TraceParent, root: Root, since: Option<SystemTime>) -> Option<RequestSpan> {
        let none = Context::new();
        let parent = match (parent.0.as_ref(), root) {
            (Some(parent), _) if !parent.span().span_context().is_sampled() => return None,
            (Some(parent), _) => parent,
            (None, Root::Sampled) => &none,
            (None, Root::Never) => return None,
        };
        // Attributes and a name are added if the request is sampled.
        let mut builder = self.0.span_builder("").with_kind(SpanKind::Server);
        builder.start_time = since;
        let span = self.0.build_with_context(builder, parent);
        span.is_recording().then(|| RequestSpan {
            context: Context::new().with_value(self.0.clone()).with_span(span),
            is_finished: AtomicBool::new(false),
        })
    }
}

/// Span of a request that is sampled. It ends when it is dropped. Unless it was finished, it is marked as cancelled.
#[derive(Debug)]
pub struct RequestSpan {
    context: Context,
    is_finished: AtomicBool,
}

impl RequestSpan {
    /// Names the span, and adds attributes.
    pub fn begin<const N: usize>(&self, name: impl Into<Cow<'static, str>>, attributes: [KeyValue; N]) {
        let span = self.context.span();
        span.update_name(name.into());
        span.set_attributes(attributes);
    }

    /// Adds an attribute.
    pub fn set(&self, attribute: KeyValue) {
        self.context.span().set_attribute(attribute);
    }

    /// Runs a future with this request as the current one.
    pub fn within<F: Future>(&self, future: F) -> WithContext<F> {
        future.with_context(self.context.clone())
    }

    /// Makes this request the current one of this thread until the value is dropped.
    #[must_use = "the request is current until it is dropped"]
    pub fn attach(&self) -> stages::CurrentGuard {
        stages::CurrentGuard { _guard: Some(self.context.clone().attach()) }
    }

    /// Adds the status of the answer. `error` names the kind of error if the service failed to answer; a client error is not one.
    pub fn finish(&self, status: KeyValue, error: Option<&str>) {
        let span = self.context.span();
        span.set_attribute(status);
        if let Some(error) = error {
            span.set_attribute(KeyValue::new("error.type", error.to_owned()));
            span.set_status(Status::error(""));
        }
        self.is_finished.store(true, Ordering::Relaxed);
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let span = self.context.span();
        if !*self.is_finished.get_mut() {
            span.set_attribute(KeyValue::new("error.type", "cancelled"));
        }
        // Work on other threads may hold the context for longer.
        span.end();
    }
}
