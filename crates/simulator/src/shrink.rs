//! Smaller plans that fail as well.

use crate::action::{Action, DiscoveryChange, FaultKind, RepairStep};
use crate::plan::Plan;
use crate::run;

/// Runs that the search for a smaller plan may take.
const RUNS_MAX: usize = 2_000;

/// A plan with fewer faults, engines and steps that fails as well. It is found by leaving out parts of `plan`, which must
/// fail.
#[must_use]
pub fn shrunk(plan: &Plan) -> Plan {
    let mut search = Search { smallest: plan.clone(), runs: 0 };
    if let Err(failure) = run(plan, false)
        && let Some(step) = failure.step
    {
        search.try_plan(|plan| plan.steps.retain(|planned| planned.number <= step));
    }
    for fault in FaultKind::ALL {
        search.try_plan(|plan| plan.steps.retain(|step| step.fault != Some(fault)));
    }
    for engine in (0..plan.engines.len()).rev() {
        search.try_plan(|plan| remove_engine(plan, engine));
    }
    search.try_plan(|plan| plan.engines.iter_mut().for_each(|engine| engine.history = 0));
    let mut part = search.smallest.steps.len().div_ceil(2);
    while part > 0 {
        let mut first = 0;
        while first < search.smallest.steps.len() {
            let removed = |plan: &mut Plan| drop(plan.steps.drain(first..(first + part).min(plan.steps.len())));
            if !search.try_plan(removed) {
                first += part;
            }
        }
        part /= 2;
    }
    search.smallest
}

struct Search {
    smallest: Plan,
    runs: usize,
}

impl Search {
    /// Keeps the changed plan, if it still fails. Returns whether it does.
    fn try_plan(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut candidate = self.smallest.clone();
        change(&mut candidate);
        self.runs += 1;
        let is_smaller = candidate.steps.len() < self.smallest.steps.len()
            || candidate.engines.len() < self.smallest.engines.len()
            || candidate.engines.iter().zip(&self.smallest.engines).any(|(new, old)| new.history < old.history);
        let fails = is_smaller && self.runs <= RUNS_MAX && run(&candidate, false).is_err();
        if fails {
            self.smallest = candidate;
        }
        fails
    }
}

/// Removes an engine and the steps that involve it.
fn remove_engine(plan: &mut Plan, removed: usize) {
    if plan.engines.len() < 2 || removed >= plan.engines.len() {
        return;
    }
    plan.engines.remove(removed);
    plan.steps.retain_mut(|step| match engine_mut(&mut step.action) {
        Some(engine) if *engine == removed => false,
        Some(engine) => {
            *engine -= usize::from(*engine > removed);
            true
        }
        None => true,
    });
}

/// The engine of an action.
fn engine_mut(action: &mut Action) -> Option<&mut usize> {
    match action {
        Action::Serve { engine, .. }
        | Action::Burst { engine, .. }
        | Action::Remove { engine, .. }
        | Action::RemoveFollowed { engine, .. }
        | Action::Clear { engine, .. }
        | Action::Odd { engine, .. }
        | Action::RestartEngine { engine, .. }
        | Action::Deliver { engine, .. }
        | Action::Lose { engine, .. }
        | Action::Duplicate { engine, .. }
        | Action::Corrupt { engine, .. }
        | Action::PanicDecoder { engine, .. }
        | Action::Disconnect { engine, .. }
        | Action::Connect { engine, .. }
        | Action::Answer { engine, .. }
        | Action::DeliverReply { engine, .. }
        | Action::Unregister { engine, .. }
        | Action::Register { engine, .. }
        | Action::Discovery(
            DiscoveryChange::Name { engine, .. }
            | DiscoveryChange::LeaveOut { engine, .. }
            | DiscoveryChange::Move { engine, .. },
        )
        | Action::Repair(RepairStep::Begin { engine, .. }) => Some(engine),
        Action::Repair(RepairStep::Fill { .. } | RepairStep::Exchange { .. })
        | Action::Run { .. }
        | Action::Settle { .. }
        | Action::Flow
        | Action::PassTime { .. }
        | Action::Silence { .. }
        | Action::StepClock { .. }
        | Action::RestartService { .. }
        | Action::ReadDump { .. }
        | Action::Recover { .. }
        | Action::Discovery(DiscoveryChange::Fail { .. })
        | Action::Limits(_)
        | Action::Store(_) => None,
    }
}
