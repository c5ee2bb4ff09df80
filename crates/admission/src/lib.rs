//! Admission of requests: bounds of their bodies, their answers and the threads that work on them, shared fairly between
//! clients, the same for HTTP and gRPC.
//!
//! | file | role |
//! |---|---|
//! | `body_budget.rs` | budgets of the bytes of all bodies, shared between clients |
//! | `answer_body.rs` | bodies of answers that count until they are sent |
//! | `fair_semaphore.rs` | permits that clients share fairly |
//! | `large_requests.rs` | threads for requests with large bodies |
//! | `accept.rs` | weights of names in headers of the `Accept` family |
//! | `content_encoding.rs` | content encodings of bodies and messages, decoded within a limit |

mod accept;
mod answer_body;
mod body_budget;
mod content_encoding;
mod fair_semaphore;
mod large_requests;

pub use accept::accepted_weight;
pub use answer_body::{AnswerBytes, count_answer};
pub use body_budget::{Bodies, BodyBudget, BodyBudgetReached, BodyBytes, READ_DEADLINE};
pub use content_encoding::{ContentEncoding, ENCODINGS, UnknownEncoding};
pub use fair_semaphore::{FairSemaphore, Permit, QueueFull};
pub use large_requests::{LARGE_BYTES, LargeRequestError, LargeRequests};
