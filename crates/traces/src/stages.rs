//! Stages of the current request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanKind, TraceContextExt, Tracer as _};
use opentelemetry::{Context, ContextGuard, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

/// Whether this process has created a tracer. It is never reset.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Enables the lookup of a current request by stages.
pub(crate) fn enable() {
    // Relaxed: it publishes no other memory. A traced request has its context on its own thread.
    IS_ENABLED.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_enabled() -> bool {
    IS_ENABLED.load(Ordering::Relaxed)
}

/// Stage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Parsing of the body.
    Parse,
    /// Rendering of a chat with its template.
    Render,
    /// Tokenization of a text.
    Tokenize,
    /// Tokenization, with rendering, by a tokenizer service.
    TokenizerService,
    /// Hashing of a prompt's blocks.
    Hash,
    /// Lookup of the blocks in this replica's index.
    Lookup,
    /// Lookup of the blocks in the shared store.
    Store,
    /// Writing of the answer.
    Answer,
}

impl Stage {
    /// Name of the stage's span.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Render => "render",
            Self::Tokenize | Self::TokenizerService => "tokenize",
            Self::Hash => "hash",
            Self::Lookup => "lookup",
            Self::Store => "store",
            Self::Answer => "answer",
        }
    }

    /// Whether another service does the work.
    const fn kind(self) -> SpanKind {
        match self {
            Self::TokenizerService | Self::Store => SpanKind::Client,
            _ => SpanKind::Internal,
        }
    }
}

/// Span of a stage, which ends when it is dropped. Nothing if the request is not traced.
#[derive(Debug)]
#[must_use = "the stage ends when it is dropped"]
pub struct StageSpan(Option<Box<Span>>);

/// Begins a stage of the current request.
#[inline]
pub fn stage(stage: Stage) -> StageSpan {
    StageSpan(if is_enabled() { begin(stage, None) } else { None })
}

/// The start time of a stage whose request is not known yet, for [`stage_since`]. None without a tracer in the process.
#[inline]
#[must_use]
pub fn stage_begin() -> Option<SystemTime> {
    is_enabled().then(SystemTime::now)
}

/// A stage of the current request that began before.
pub fn stage_since(stage: Stage, since: SystemTime) -> StageSpan {
    StageSpan(begin(stage, Some(since)))
}

fn begin(stage: Stage, since: Option<SystemTime>) -> Option<Box<Span>> {
    Context::map_current(|request| {
        let tracer = request.get::<SdkTracer>()?;
        let mut builder = tracer.span_builder(stage.as_str()).with_kind(stage.kind());
        builder.start_time = since;
        Some(Box::new(tracer.build_with_context(builder, request)))
    })
}

impl StageSpan {
    /// Adds an attribute, which is made if the request is traced.
    pub fn set(&mut self, attribute: impl FnOnce() -> KeyValue) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(attribute());
        }
    }

    /// Makes the stage the current span until the value is dropped: a call to another service continues the trace from it.
    #[must_use = "the stage ends when it is dropped"]
    pub fn attach(self) -> CurrentGuard {
        CurrentGuard { _guard: self.0.map(|span| Context::current_with_span(*span).attach()) }
    }
}

/// Adds attributes to the span of the current request. They are made if it is traced.
#[inline]
pub fn describe<const N: usize>(attributes: impl FnOnce() -> [KeyValue; N]) {
    if !is_enabled() {
        return;
    }
    Context::map_current(|request| {
        if request.get::<SdkTracer>().is_some() {
            request.span().set_attributes(attributes());
        }
    });
}

/// The current request, for work that continues on another thread. Nothing if it is not traced.
#[derive(Debug, Clone, Default)]
pub struct CurrentRequest(Option<Context>);

/// The current request.
#[inline]
#[must_use]
pub fn current() -> CurrentRequest {
    if !is_enabled() {
        return CurrentRequest(None);
    }
    CurrentRequest(Context::map_current(|request| request.get::<SdkTracer>().map(|_| request.clone())))
}

impl CurrentRequest {
    /// Makes this request the current one of this thread until the value is dropped.
    #[must_use = "the request is current until it is dropped"]
    pub fn attach(&self) -> CurrentGuard {
        CurrentGuard { _guard: self.0.clone().map(Context::attach) }
    }
}

/// A request or a stage that is the current one of this thread until this is dropped.
#[must_use = "it is current until it is dropped"]
pub struct CurrentGuard {
    pub(crate) _guard: Option<ContextGuard>,
}
