//! Options of the endpoint picker.

use std::net::SocketAddr;

use clap::Args;
use flash_indexer_server::EndpointPickerOptions;

#[derive(Args)]
#[command(next_help_heading = "Endpoint picker")]
pub(super) struct EndpointPickerArguments {
    /// Address and port at which gateways ask for the endpoint of a request: Envoy's external processing, as an InferencePool
    /// of the Kubernetes Gateway API uses it. An address that other hosts reach needs --token-file, --jwt-keys, --tls-client-ca or
    /// --insecure. Without this option there is no endpoint picker.
    #[arg(long, env = "FLASH_INDEXER_ENDPOINT_PICKER_BIND", value_name = "ADDRESS:PORT")]
    endpoint_picker_bind: Option<SocketAddr>,

    /// Port of the engines for requests: the targetPort of the InferencePool. An instance that is named ADDRESS:PORT has its own.
    #[arg(long, env = "FLASH_INDEXER_ENDPOINT_PICKER_TARGET_PORT", default_value_t = 8000, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), requires = "endpoint_picker_bind")]
    endpoint_picker_target_port: u16,

    /// Requests in flight of an instance beyond which the endpoint picker picks another one. If all have as many, a
    /// request is answered with 429. [default: no limit]
    #[arg(long, env = "FLASH_INDEXER_ENDPOINT_PICKER_REQUESTS_MAX", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), requires = "endpoint_picker_bind")]
    endpoint_picker_requests_max: Option<u32>,
}

impl EndpointPickerArguments {
    /// Options of the endpoint picker, if it is used. Its requests have this tenant. Requests that name no registered model have this
    /// model.
    pub(super) fn options(&self, model_name: &str, tenant_id: &str) -> Option<EndpointPickerOptions> {
        Some(EndpointPickerOptions {
            address: self.endpoint_picker_bind?,
            target_port: self.endpoint_picker_target_port,
            model_name: model_name.to_owned(),
            tenant_id: tenant_id.to_owned(),
            requests_max: self.endpoint_picker_requests_max,
        })
    }
}
