//! Queues between the threads of ingestion: one for each engine, served in turn by model and engine, within one byte budget.
//!
//! | file | role |
//! |---|---|
//! | `class.rs` | classes: the queues of one model |
//! | `turns.rs` | order in which the queues of one consumer have their turns |
//! | `fair.rs` | the queues and their budget: pure state, without threads or clocks |
//! | `shared.rs` | [`Queues`]: fair queues that threads share |
//! | `processor_turns.rs` | [`ProcessorTurns`]: when threads yield the processor to each other |
//! | `budget.rs` | default of the byte budget |

mod budget;
mod class;
mod fair;
#[cfg(test)]
mod fair_tests;
mod processor_turns;
mod shared;
mod turns;

pub use self::budget::{QUEUE_BYTES_MIN, default_queue_bytes};
pub use self::class::{ClassedKey, QueueClass};
pub use self::fair::{NoticePosition, QueuedSize, QueuedWork};
pub use self::processor_turns::{ProcessorTurn, ProcessorTurns};
pub use self::shared::{Queues, TakenEntry};
