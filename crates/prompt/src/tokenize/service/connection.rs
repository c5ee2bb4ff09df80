//! The connection to a tokenizer service, shared by many threads: deadlines, and back-off while the service is unreachable.

use std::error::Error;
use std::future::Future;
use std::iter::successors;
use std::time::{Duration, Instant};

use flash_indexer_proto::tokenization::tokenization_service_client::TokenizationServiceClient;
use flash_indexer_traces::outgoing_headers;
use parking_lot::Mutex;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, TimeoutExpired};

use super::address::ServiceAddress;
use crate::tokenize::error::ServiceError;
use crate::tokenize::limits::SERVICE_MESSAGE_BYTES_MAX;

/// Back-off doubles from the first pause to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

pub(super) type Client = TokenizationServiceClient<Channel>;

pub(super) struct Connection {
    pub(super) address: String,
    client: Client,
    deadline: Duration,
    pause: Mutex<Option<Pause>>,
    /// `None` only during drop.
    runtime: Option<Runtime>,
}

/// Back-off after an attempt that found the service unreachable.
#[derive(Clone)]
struct Pause {
    until: Instant,
    length: Duration,
    why: String,
}

impl Connection {
    /// Creates the connection. It connects at the first call.
    pub(super) fn new(address: &ServiceAddress, deadline: Duration) -> std::io::Result<Self> {
        let target = match address {
            ServiceAddress::Unix(path) => format!("unix:{}", path.display()),
            ServiceAddress::Tcp(authority) => format!("http://{authority}"),
        };
        let invalid = |error| std::io::Error::new(std::io::ErrorKind::InvalidInput, error);
        let endpoint = Endpoint::from_shared(target).map_err(invalid)?.connect_timeout(deadline);
        // The pool's threads make the calls. This thread drives the connection.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tokenizer-service")
            .enable_all()
            .build()?;
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        let client = Client::new(channel).max_decoding_message_size(SERVICE_MESSAGE_BYTES_MAX);
        Ok(Self { address: address.to_string(), client, deadline, pause: Mutex::default(), runtime: Some(runtime) })
    }

    /// The deadline of a call that starts now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Makes one call and waits for its response until `deadline`.
    ///
    /// A call that fails because the connection was lost is repeated once on a new connection: tokenizing is idempotent.
    pub(super) fn call<M: Message + Clone, A, F>(
        &self,
        deadline: Instant,
        message: M,
        method: impl Fn(Client, Request<M>) -> F,
    ) -> Result<A, ServiceError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let bytes = message.encoded_len();
        if bytes > SERVICE_MESSAGE_BYTES_MAX {
            let address = self.address.clone();
            return Err(ServiceError::TooLarge { address, why: format!("the prompt has {bytes}") });
        }
        let was_unreachable = self.check_pause()?;
        let first = self.try_call(deadline, message.clone(), &method);
        let result = match first {
            Err(Failure::Status(status)) if has_lost_connection(&status) && !was_unreachable => {
                self.try_call(deadline, message, &method)
            }
            first => first,
        };
        result.inspect(|_| *self.pause.lock() = None).map_err(|failure| self.explain(failure))
    }

    fn try_call<M, A, F>(
        &self,
        deadline: Instant,
        message: M,
        method: impl Fn(Client, Request<M>) -> F,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let runtime = self.runtime.as_ref().expect("it is there until the connection is dropped");
        let left = deadline.saturating_duration_since(Instant::now());
        let mut request = Request::new(message);
        request.set_timeout(left);
        for (name, value) in outgoing_headers() {
            if let Ok(value) = value.parse() {
                request.metadata_mut().insert(name, value);
            }
        }
        let answer = runtime.block_on(async { timeout(left, method(self.client.clone(), request)).await });
        Ok(answer.map_err(|_| Failure::TimedOut)??.into_inner())
    }

    /// Whether the last attempt found the service unreachable. An error during the back-off.
    fn check_pause(&self) -> Result<bool, ServiceError> {
        let pause = self.pause.lock();
        let Some(Pause { until, why, .. }) = pause.as_ref() else { return Ok(false) };
        let retry_in = until.saturating_duration_since(Instant::now());
        if retry_in.is_zero() {
            return Ok(true);
        }
        Err(ServiceError::Unreachable { address: self.address.clone(), why: why.clone(), retry_in })
    }

    fn explain(&self, failure: Failure) -> ServiceError {
        let address = self.address.clone();
        let timed_out = || ServiceError::TimedOut { address: self.address.clone(), deadline: self.deadline };
        let status = match failure {
            Failure::TimedOut => return timed_out(),
            Failure::Status(status) => status,
        };
        if has_lost_connection(&status) {
            let why = reason_of(&status);
            let retry_in = self.begin_pause(&why);
            return ServiceError::Unreachable { address, why, retry_in };
        }
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => timed_out(),
            Code::OutOfRange => ServiceError::TooLarge { address, why: status.message().to_owned() },
            Code::Unimplemented => ServiceError::Unsupported { address, why: status.message().to_owned() },
            code => ServiceError::Refused { address, why: format!("{}: {}", code.description(), status.message()) },
        }
    }

    fn begin_pause(&self, why: &str) -> Duration {
        let mut pause = self.pause.lock();
        let length = pause.as_ref().map_or(FIRST_PAUSE, |last| (last.length * 2).min(LAST_PAUSE));
        *pause = Some(Pause { until: Instant::now() + length, length, why: why.to_owned() });
        length
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Dropping a runtime blocks, which panics on the threads of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

enum Failure {
    TimedOut,
    Status(Status),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        // The channel applies the timeout of the request as well, and may be the first to see it expire.
        let has_expired = causes_of(&status).any(|cause| cause.is::<TimeoutExpired>());
        if has_expired { Self::TimedOut } else { Self::Status(status) }
    }
}

/// Whether the connection failed. A status that the service sent has no local cause, except for a message that is too large.
fn has_lost_connection(status: &Status) -> bool {
    let is_ours = status.source().is_some() && status.code() != Code::OutOfRange;
    is_ours || status.code() == Code::Unavailable
}

/// The innermost cause, which is the most specific: a file does not exist, or a connection was refused.
fn reason_of(status: &Status) -> String {
    causes_of(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

fn causes_of(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    successors(status.source(), |cause| (*cause).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_of_the_channel_is_no_lost_connection() {
        let of = |cause: Box<dyn Error + Send + Sync>| Failure::from(Status::from_error(cause));
        assert!(matches!(of(Box::new(TimeoutExpired(()))), Failure::TimedOut));
        let lost = of(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert!(matches!(lost, Failure::Status(status) if has_lost_connection(&status)));
    }
}
