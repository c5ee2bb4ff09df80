//! Connections to the nodes of a cluster. Each node fails independently: only calls for its keys are affected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::Settings;
use super::node::{Dialler, NodeLink};
use super::slots::{Address, Slots};
use crate::error::StoreError;
use crate::script::Call;
use crate::supervision::{RESTART_PAUSE, supervise};

/// Interval between two reads of the slot table of a healthy cluster.
const REFRESH: Duration = Duration::from_secs(5);
/// Interval while the cluster is down or a master is not connected; bounds the delay after a failover.
const UNHEALTHY_REFRESH: Duration = Duration::from_secs(1);
/// Shortest pause between two reads.
const PAUSE: Duration = Duration::from_millis(200);
/// Limit of the `MOVED` redirections that one call follows.
const REDIRECTS_MAX: usize = 3;
/// Deadline of a read of the slot table.
const DEADLINE: Duration = Duration::from_secs(1);

struct Node {
    link: Arc<NodeLink>,
    task: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) struct ClusterLink {
    settings: Settings,
    /// Nodes of the configured address.
    seeds: Vec<Address>,
    nodes: Mutex<BTreeMap<Address, Node>>,
    slots: ArcSwap<Slots>,
    /// Reason why the whole cluster rejects every key, from the last response; none if it serves keys.
    down: Mutex<Option<String>>,
    /// A key of this namespace, read to find out whether the cluster is down.
    probe_key: String,
    /// Notified when a call found the slot table outdated or a node unreachable.
    stale: Notify,
}

impl ClusterLink {
    pub(super) fn new(settings: Settings, seeds: Vec<Address>, probe_key: String) -> Self {
        Self {
            settings,
            seeds,
            nodes: Mutex::default(),
            slots: ArcSwap::default(),
            down: Mutex::default(),
            probe_key,
            stale: Notify::new(),
        }
    }

    pub(super) async fn maintain(self: Arc<Self>) {
        loop {
            let pause = match self.refresh().await {
                false => PAUSE,
                true if self.is_connected() => REFRESH,
                true => UNHEALTHY_REFRESH,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stale.notified() => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        let (slots, nodes) = (self.slots.load(), self.nodes.lock());
        let is_there = |master| nodes.get(master).is_some_and(|node| node.link.is_connected());
        slots.is_complete() && slots.masters().all(is_there) && self.down.lock().is_none()
    }

    pub(super) fn is_usable(&self) -> bool {
        let (slots, nodes) = (self.slots.load(), self.nodes.lock());
        slots.masters().any(|master| nodes.get(master).is_some_and(|node| node.link.is_connected()))
    }

    /// Reason why some keys cannot be served. The cluster's own reason precedes a node's.
    pub(super) fn last_error(&self) -> String {
        if let Some(down) = &*self.down.lock() {
            return down.clone();
        }
        let nodes = self.nodes.lock();
        let gone = nodes.iter().find(|(_, node)| !node.link.is_connected());
        gone.map_or_else(String::new, |((host, port), node)| format!("{host}:{port}: {}", node.link.last_error()))
    }

    /// Calls the master of the call's keys, and follows redirections.
    pub(super) async fn call(&self, call: &Call, deadline: Duration) -> Result<Value, StoreError> {
        let start = Instant::now();
        let master = self.slots.load().master_of(call.first_key()).cloned();
        let Some(master) = master else {
            self.stale.notify_one();
            return Err(StoreError::Unreachable("no node of the cluster serves the key's slot".to_owned()));
        };
        let response = match self.call_node(&master, call, deadline).await {
            Err(StoreError::Moved(to)) => {
                // A redirection shares the deadline. Its timeout does not close a connection that responds.
                let left = deadline.saturating_sub(start.elapsed());
                let following = self.follow(master, to, call, deadline);
                tokio::time::timeout(left, following).await.unwrap_or(Err(StoreError::TimedOut(deadline)))
            }
            response => response,
        };
        if let Err(StoreError::Unreachable(_) | StoreError::TimedOut(_) | StoreError::Moved(_) | StoreError::Busy(_)) =
            &response
        {
            self.stale.notify_one();
        }
        response
    }

    async fn follow(
        &self,
        mut from: Address,
        mut to: String,
        call: &Call,
        deadline: Duration,
    ) -> Result<Value, StoreError> {
        self.stale.notify_one();
        for _ in 0..REDIRECTS_MAX {
            let Some(node) = redirected(&from, &to) else { return Err(StoreError::Moved(to)) };
            match self.call_node(&node, call, deadline).await {
                Err(StoreError::Moved(next)) => (from, to) = (node, next),
                response => return response,
            }
        }
        Err(StoreError::Moved(to))
    }

    async fn call_node(&self, node: &Address, call: &Call, deadline: Duration) -> Result<Value, StoreError> {
        let link =
            self.link(node).ok_or_else(|| StoreError::Unreachable(format!("invalid address {}:{}", node.0, node.1)))?;
        link.call(call, deadline).await
    }

    /// Reads the slot table from the first node that serves keys. The table of a node that rejects every key, such as
    /// a node cut off from the other masters, counts only if no other node responds.
    async fn refresh(&self) -> bool {
        let masters: Vec<Address> = self.slots.load().masters().cloned().collect();
        let mut refusing = None;
        for address in masters.iter().chain(&self.seeds) {
            let Some(link) = self.link(address) else { continue };
            let response = link.command(redis::cmd("CLUSTER").arg("SLOTS"), DEADLINE).await;
            let slots = response.ok().and_then(|response| Slots::read(&response, address));
            let Some(slots) = slots.filter(|slots| slots.masters().next().is_some()) else { continue };
            match link.command(redis::cmd("GET").arg(&self.probe_key), DEADLINE).await {
                Err(StoreError::Busy(why)) => _ = refusing.get_or_insert((slots, why)),
                _ => {
                    self.adopt(slots, None);
                    return true;
                }
            }
        }
        let Some((slots, why)) = refusing else { return false };
        self.adopt(slots, Some(why));
        true
    }

    /// Replaces the slot table.
    fn adopt(&self, slots: Slots, down: Option<String>) {
        slots.masters().for_each(|master| drop(self.link(master)));
        let is_needed = |address: &Address| slots.masters().any(|master| master == address);
        self.nodes.lock().retain(|address, _| is_needed(address) || self.seeds.contains(address));
        self.slots.store(Arc::new(slots));
        let mut known = self.down.lock();
        if known.is_some() != down.is_some() {
            match &down {
                Some(why) => warn!(
                    error = why.as_str(),
                    "shared store cluster is down; waiting for it to recover; check its nodes"
                ),
                None => info!("shared store cluster serves keys again"),
            }
        }
        *known = down;
    }

    /// The link to a node, created if it is new; none if the node's address is invalid.
    fn link(&self, address: &Address) -> Option<Arc<NodeLink>> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Some(Arc::clone(&node.link));
        }
        let link = Arc::new(NodeLink::new(Dialler::Node(Box::new(self.settings.client(&address.0, address.1).ok()?))));
        let maintained = Arc::clone(&link);
        let task = tokio::spawn(supervise("node link", RESTART_PAUSE, move || Arc::clone(&maintained).maintain()));
        nodes.insert(address.clone(), Node { link: Arc::clone(&link), task });
        Some(link)
    }
}

/// The node that a `MOVED` redirection names; without a host it is the node that responded.
fn redirected(from: &Address, to: &str) -> Option<Address> {
    let (host, port) = to.rsplit_once(':')?;
    let host = if host.is_empty() { from.0.clone() } else { host.trim_matches(['[', ']']).to_owned() };
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_names_a_node_or_a_port_alone() {
        let from = ("a".to_owned(), 1);
        assert_eq!(redirected(&from, "b:2"), Some(("b".to_owned(), 2)));
        assert_eq!(redirected(&from, ":3"), Some(("a".to_owned(), 3)));
        assert_eq!(redirected(&from, "::1:4"), Some(("::1".to_owned(), 4)));
        assert_eq!(redirected(&from, "b"), None);
    }
}
