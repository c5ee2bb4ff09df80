//! The shared store: nodes in memory that execute the service's scripts, and links that lose calls.

mod scripts;
mod tables;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_redis::{ScriptCall, SimulatedLink, SimulatedStore, StoreError, Value};
use flash_indexer_sim::Random;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use self::scripts::Interpreter;
use self::tables::Tables;

/// Clock of every node at the start, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_700_000_000_000;
/// Retention of blocks. They are written again after a third of it.
pub(crate) const RETENTION: Duration = Duration::from_secs(60);
/// Pause after which a link that was lost connects again.
const RECONNECT: Duration = Duration::from_millis(50);

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFate {
    /// It does not reach the store.
    Lost,
    /// It is executed, and its response is lost.
    Unanswered,
    /// It is executed when its caller has given up.
    Late,
}

/// A fault of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// The next calls of a service.
    Calls { service: usize, fate: CallFate, count: usize },
    /// A service does not reach the store, or reaches it again.
    Partition { service: usize, is_reachable: bool },
    /// A node does not respond, or responds again.
    Suspend { node: usize, is_running: bool },
    /// Calls to a node take this time.
    Slow { node: usize, ms: u64 },
    /// The replica of a node receives everything that the node has.
    Replicate { node: usize },
    /// The replica of a node takes its place: data that it did not receive is lost.
    FailOver { node: usize },
    /// A node starts without keys.
    Empty { node: usize },
    /// A node removes some keys for lack of memory.
    Evict { node: usize, keys: usize },
    /// The clock of a node is set.
    StepClock { node: usize, ms: i64 },
}

#[derive(Debug, Default)]
struct Node {
    tables: Tables,
    replica: Tables,
    is_suspended: bool,
    delay: Duration,
    clock_step_ms: i64,
}

/// A service's connection to the store.
#[derive(Debug, Default)]
struct Route {
    is_partitioned: bool,
    fates: VecDeque<CallFate>,
    /// Number of times that the service was killed.
    kills: u64,
}

struct State {
    nodes: Vec<Node>,
    routes: Vec<Route>,
    interpreter: Interpreter,
    random: Random,
    start: Instant,
    /// Number of executed scripts.
    executed: u64,
    /// Last moment at which the store may lack confirmed entries without their publisher being able to notice.
    lacks_until: Option<Instant>,
    /// Sum of the steps by which clocks were set back.
    set_back: Duration,
}

/// The store of all services.
#[derive(Clone)]
pub(crate) struct Store(Arc<Mutex<State>>);

/// The store as one service reaches it.
#[derive(Clone)]
struct ServiceStore {
    store: Store,
    service: usize,
}

struct StoreLink {
    through: ServiceStore,
    /// Number of times that the service was killed before.
    kills: u64,
    /// End of the time in which the link is not connected after a failed call.
    lost_until: Mutex<Option<Instant>>,
}

impl Store {
    pub(crate) fn new(nodes: usize, services: usize, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            routes: (0..services).map(|_| Route::default()).collect(),
            interpreter: Interpreter::new(),
            random: Random::new(seed),
            start: Instant::now(),
            executed: 0,
            lacks_until: None,
            set_back: Duration::ZERO,
        })))
    }

    /// The store as this service reaches it.
    pub(crate) fn of_service(&self, service: usize) -> Arc<dyn SimulatedStore> {
        Arc::new(ServiceStore { store: self.clone(), service })
    }

    pub(crate) fn suffer(&self, fault: StoreFault) {
        let mut state = self.0.lock();
        let State { nodes, routes, random, .. } = &mut *state;
        let mut lacks_for = None;
        match fault {
            StoreFault::Calls { service, fate, count } => routes[service].fates.extend(vec![fate; count]),
            StoreFault::Partition { service, is_reachable } => routes[service].is_partitioned = !is_reachable,
            StoreFault::Suspend { node, is_running } => nodes[node].is_suspended = !is_running,
            StoreFault::Slow { node, ms } => nodes[node].delay = Duration::from_millis(ms),
            StoreFault::Replicate { node } => nodes[node].replica = nodes[node].tables.clone(),
            StoreFault::FailOver { node } => {
                nodes[node].tables = nodes[node].replica.clone();
                lacks_for = Some(Duration::ZERO);
            }
            StoreFault::Empty { node } => {
                (nodes[node].tables, nodes[node].replica) = Default::default();
                lacks_for = Some(Duration::ZERO);
            }
            StoreFault::Evict { node, keys } => {
                nodes[node].tables.evict(keys, random);
                // Only lost tables of the bucket are detected: if a single block is lost, the answer is too small.
                lacks_for = Some(RETENTION / 3);
            }
            StoreFault::StepClock { node, ms } => {
                nodes[node].clock_step_ms += ms;
                if ms < 0 {
                    state.set_back += Duration::from_millis(ms.unsigned_abs());
                }
                lacks_for = Some(Duration::ZERO);
            }
        }
        if let Some(lacks_for) = lacks_for {
            state.lacks_until = state.lacks_until.max(Some(Instant::now() + lacks_for));
        }
    }

    /// Cuts the links of a service: later calls of its tasks have no effect.
    pub(crate) fn kill(&self, service: usize) {
        self.0.lock().routes[service].kills += 1;
    }

    /// Ends every fault.
    pub(crate) fn recover(&self) {
        let mut state = self.0.lock();
        for node in &mut state.nodes {
            (node.is_suspended, node.delay) = (false, Duration::ZERO);
        }
        for route in &mut state.routes {
            *route = Route { kills: route.kills, ..Route::default() };
        }
    }

    /// Whether the store may lack entries, since a moment, without their publisher being able to notice.
    pub(crate) fn may_lack_since(&self, moment: Instant) -> bool {
        self.0.lock().lacks_until.is_some_and(|until| until >= moment)
    }

    /// Sum of the steps by which clocks were set back. Entries may be valid for longer by it.
    pub(crate) fn set_back(&self) -> Duration {
        self.0.lock().set_back
    }

    fn execute(&self, node: usize, call: ScriptCall<'_>) -> Value {
        let State { nodes, interpreter, start, executed, .. } = &mut *self.0.lock();
        let Node { tables, clock_step_ms, .. } = &mut nodes[node];
        let elapsed = start.elapsed().as_millis() as u64;
        let now_ms = (START_MS + elapsed).saturating_add_signed(*clock_step_ms);
        // Two scripts do not run in the same microsecond.
        *executed += 1;
        interpreter.run(call, tables, now_ms * 1_000 + *executed % 1_000)
    }

    /// The node of a script's keys: the node of the bucket's number in `{fi:NUMBER}`, or the first node for the directory.
    fn node_of(&self, call: &ScriptCall<'_>) -> usize {
        let tag = call.keys[0].split(|&byte| byte == b':' || byte == b'}').nth(1).unwrap_or_default();
        let bucket: usize = str::from_utf8(tag).ok().and_then(|tag| tag.parse().ok()).unwrap_or_default();
        bucket % self.0.lock().nodes.len()
    }
}

impl fmt::Debug for ServiceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceStore").field("service", &self.service).finish_non_exhaustive()
    }
}

impl SimulatedStore for ServiceStore {
    /// One bucket for each node.
    fn buckets(&self) -> u16 {
        self.store.0.lock().nodes.len() as u16
    }

    fn connect(&self) -> Arc<dyn SimulatedLink> {
        let kills = self.store.0.lock().routes[self.service].kills;
        Arc::new(StoreLink { through: self.clone(), kills, lost_until: Mutex::default() })
    }

    fn random(&self) -> u64 {
        self.store.0.lock().random.next()
    }
}

impl SimulatedLink for StoreLink {
    fn is_connected(&self) -> bool {
        let ServiceStore { store, service } = &self.through;
        let (is_partitioned, is_killed) = {
            let route = &store.0.lock().routes[*service];
            (route.is_partitioned, route.kills != self.kills)
        };
        let mut lost_until = self.lost_until.lock();
        match *lost_until {
            // A call that gets no response detects a partition.
            _ if is_killed => false,
            None => true,
            Some(until) if is_partitioned || Instant::now() < until => false,
            Some(_) => {
                *lost_until = None;
                true
            }
        }
    }

    fn call<'c>(
        &'c self,
        call: ScriptCall<'c>,
        deadline: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Value, StoreError>> + Send + 'c>> {
        Box::pin(self.run(call, deadline))
    }
}

impl StoreLink {
    async fn run(&self, call: ScriptCall<'_>, deadline: Duration) -> Result<Value, StoreError> {
        if !self.is_connected() {
            return Err(StoreError::Unreachable("simulated".to_owned()));
        }
        let give_up_at = Instant::now() + deadline;
        let ServiceStore { store, service } = &self.through;
        let node = store.node_of(&call);
        let (fate, delay) = {
            let mut state = store.0.lock();
            let fate = state.routes[*service].fates.pop_front();
            (fate, state.nodes[node].delay)
        };
        if fate == Some(CallFate::Late) {
            let (store, keys, arguments) = (store.clone(), call.keys.to_vec(), call.arguments.to_vec());
            tokio::spawn(async move {
                sleep_until(give_up_at + Duration::from_millis(500)).await;
                store.execute(node, ScriptCall { source: call.source, keys: &keys, arguments: &arguments });
            });
        }
        // Half of the time is spent before the script runs, and half after it.
        sleep(delay / 2).await;
        let is_reached = {
            let state = store.0.lock();
            !state.routes[*service].is_partitioned && !state.nodes[node].is_suspended && Instant::now() < give_up_at
        };
        let is_executed = is_reached && matches!(fate, None | Some(CallFate::Unanswered));
        let response = is_executed.then(|| store.execute(node, call));
        sleep(delay / 2).await;
        match response {
            Some(response) if fate.is_none() && Instant::now() < give_up_at => Ok(response),
            _ => {
                sleep_until(give_up_at).await;
                *self.lost_until.lock() = Some(Instant::now() + RECONNECT);
                Err(StoreError::TimedOut(deadline))
            }
        }
    }
}
