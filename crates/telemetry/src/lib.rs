//! Metrics of the service and supervision of its long-lived threads.
//!
//! | module | role |
//! |---|---|
//! | [`metrics`] | every counter, gauge and histogram, and their text form for Prometheus |
//! | [`supervision`] | panics, unexpected ends and standstills of threads, and what of it fails readiness |

pub mod metrics;
pub mod supervision;
