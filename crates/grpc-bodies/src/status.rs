//! Labels of gRPC status codes, and the status of a limit.

use std::error::Error;

use tonic::{Code, Status};

/// Label of a status code in metrics. Codes that this service never returns share a label.
pub const fn code_label(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::InvalidArgument => "invalid_argument",
        Code::NotFound => "not_found",
        Code::ResourceExhausted => "resource_exhausted",
        Code::Unimplemented => "unimplemented",
        Code::FailedPrecondition => "failed_precondition",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::Unauthenticated => "unauthenticated",
        Code::PermissionDenied => "permission_denied",
        _ => "other",
    }
}

/// Status of a limit that was reached, and counted there.
pub fn exhausted(error: &impl Error) -> Status {
    let mut status = Status::resource_exhausted(error.to_string());
    status.metadata_mut().insert("retry-after", 1.into());
    status
}
