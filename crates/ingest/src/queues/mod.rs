//! Queues between threads: one for each engine, served in turn by model and engine, within one byte budget.

mod budget;
mod class;
mod fair;
#[cfg(test)]
mod fair_tests;
mod shared;
mod turns;

pub use self::budget::{QUEUE_BYTES_MIN, default_queue_bytes};
pub(crate) use self::class::{ClassedKey, QueueClass};
pub(crate) use self::fair::{NoticePosition, QueuedSize, QueuedWork};
pub(crate) use self::shared::{Queues, TakenEntry};
