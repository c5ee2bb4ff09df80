//! A deterministic simulation of the service.
//!
//! The real stream state machine, decoders, queues, writers, registry and index run as steps of one thread. Engines,
//! network, time and the order of threads are simulated. One seed determines all of them, so a failing seed fails again in
//! the same way. After each step the answers of every service are compared with what the engines hold.
//!
//! ```
//! use flash_indexer_simulator::{Plan, run};
//!
//! let plan = Plan::generate(1, 20);
//! let coverage = run(&plan, false).expect("every invariant holds");
//! assert!(coverage.answers > 0);
//! ```
//!
//! | file | role |
//! |---|---|
//! | `action.rs` | what can happen |
//! | `plan.rs`, `plan_discovery.rs`, `plan_limits.rs`, `plan_repair.rs`, `plan_store.rs` | everything that a simulation does, generated from a seed |
//! | `shrink.rs` | a smaller plan that fails as well |
//! | `prompts.rs`, `engine.rs` | prompts, and engines with ground truth |
//! | `network.rs` | messages, replays and connections between engines and one service |
//! | `service.rs` | one replica of the service |
//! | `discovery.rs` | its discovery, with a source that the simulation reports for |
//! | `store` | the store that services share: nodes with the scripts of the service, and links that lose calls |
//! | `sharing.rs` | the runtime of the store's clients, and the history of the ranks that they publish |
//! | `repair.rs` | comparison with a peer, and rebuilding of instances |
//! | `limits.rs`, `limits_file.rs` | limits files of services, and their reload |
//! | `world.rs` | execution of a plan |
//! | `coverage.rs` | counts of what simulations did |
//! | `check.rs`, `check_shared.rs` | what must hold, and what must hold for ranks of other services |

mod action;
mod check;
mod check_shared;
mod coverage;
mod discovery;
mod engine;
mod limits;
mod limits_file;
mod network;
mod plan;
mod plan_discovery;
mod plan_limits;
mod plan_repair;
mod plan_store;
mod prompts;
mod repair;
mod service;
mod sharing;
mod shrink;
mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::Coverage;
pub use plan::Plan;
pub use shrink::shrunk;
use world::World;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Number of the step after which it was broken; none after the last one.
    pub step: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.step {
            Some(step) => write!(f, "after step {step}: {}", self.what),
            None => write!(f, "after the last step: {}", self.what),
        }
    }
}

/// Runs a plan. Prints each step and the state after it if `is_verbose`.
///
/// # Errors
///
/// The first broken invariant.
pub fn run(plan: &Plan, is_verbose: bool) -> Result<Coverage, Failure> {
    let mut step = None;
    let simulated = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(plan, is_verbose);
        for planned in &plan.steps {
            step = Some(planned.number);
            world.execute(planned.number, &planned.action)?;
        }
        step = None;
        world.finish()?;
        Ok::<_, String>(world.coverage)
    }));
    let outcome = simulated.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(format!("panic: {text}"))
    });
    outcome.map_err(|what| Failure { step, what })
}

/// Suppresses the output of panics that a plan injects.
pub fn silence_injected_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if !text.contains("fault injected by a test") && !text.contains("a test asked for a failure") {
            default(panic);
        }
    }));
}
