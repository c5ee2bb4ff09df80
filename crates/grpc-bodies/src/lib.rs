//! Bodies of gRPC requests: their bytes in the budget of all bodies, their deadlines, the boundaries of their messages, and the move of
//! a large message's decoding to a thread for large requests. They know no service and no message.
//!
//! | file | role |
//! |---|---|
//! | `request_body.rs` | [`RequestBody`]: its part of the budget, its deadline |
//! | `messages.rs` | boundaries of the messages in a body |
//! | `thread_moves.rs` | moves of work to the threads for large requests |
//! | `status.rs` | labels of status codes, and the status of a limit |

mod messages;
mod request_body;
mod status;
mod thread_moves;

pub use self::request_body::{Method, MethodKind, RequestBody, SharedBody};
pub use self::status::{code_label, exhausted};
pub use self::thread_moves::poll_here;
