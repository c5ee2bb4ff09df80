//! Options of `serve` for traces of requests.

use std::path::PathBuf;

use clap::Args;
use flash_indexer_server::{ClientFiles, OtlpEndpoint, OtlpOptions, SampleRatio};

#[derive(Args)]
#[command(next_help_heading = "Traces (docs/operations.md#traces)")]
pub(super) struct TraceArguments {
    /// Send OpenTelemetry spans of requests to the collector at this URL, by OTLP over HTTP, such as http://collector:4318.
    /// /v1/traces is appended. A request with a sampled `traceparent` continues the trace of its caller.
    #[arg(long, env = "FLASH_INDEXER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<OtlpEndpoint>,

    /// Part of the requests without a `traceparent` that begin a trace, from 0 to 1 [default: 0.01].
    #[arg(long, env = "FLASH_INDEXER_OTLP_SAMPLE_RATIO", requires = "otlp_endpoint", value_name = "RATIO")]
    otlp_sample_ratio: Option<SampleRatio>,

    /// File with the CA certificates, in PEM, that verify the certificate of an https:// collector [default: public CAs].
    #[arg(long, env = "FLASH_INDEXER_OTLP_CA", requires = "otlp_endpoint", value_name = "FILE")]
    otlp_ca: Option<PathBuf>,
}

impl TraceArguments {
    /// Options of the export, if `--otlp-endpoint` is given.
    pub(super) fn options(&self) -> Option<OtlpOptions> {
        let endpoint = self.otlp_endpoint.clone()?;
        Some(OtlpOptions {
            sample_ratio: self.otlp_sample_ratio.unwrap_or_default(),
            credentials: ClientFiles { ca: self.otlp_ca.clone(), ..ClientFiles::default() },
            ..OtlpOptions::to(endpoint)
        })
    }
}
