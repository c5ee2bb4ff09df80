//! Connections to the nodes of a cluster, each by itself: one that is gone holds nobody up but who needs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::node::{Dialler, NodeLink};
use super::slots::{Address, Slots};
use super::{LinkError, Settings};
use crate::script::Call;
use crate::store::RESTART_PAUSE;
use crate::supervised::supervised;

/// How often the nodes are asked who has what, without a reason.
const REFRESH: Duration = Duration::from_secs(5);
/// Shortest pause between two such questions.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for the answer.
const DEADLINE: Duration = Duration::from_secs(1);

struct Node {
    link: Arc<NodeLink>,
    keeping: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

pub(crate) struct ClusterLink {
    settings: Settings,
    /// Where to start from.
    seeds: Vec<Address>,
    nodes: Mutex<BTreeMap<Address, Node>>,
    slots: ArcSwap<Slots>,
    /// Somebody has found the slots to be elsewhere, or a node gone.
    stale: Notify,
}

impl ClusterLink {
    pub(super) fn new(settings: Settings, seeds: Vec<Address>) -> Self {
        Self { settings, seeds, nodes: Mutex::default(), slots: ArcSwap::default(), stale: Notify::new() }
    }

    pub(super) async fn keep(self: Arc<Self>) {
        loop {
            let pause = if self.refresh().await { REFRESH } else { PAUSE };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stale.notified() => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        let (slots, nodes) = (self.slots.load(), self.nodes.lock());
        let is_there = |master| nodes.get(master).is_some_and(|node| node.link.is_connected());
        slots.masters().next().is_some() && slots.masters().all(is_there)
    }

    pub(super) fn is_usable(&self) -> bool {
        let (slots, nodes) = (self.slots.load(), self.nodes.lock());
        slots.masters().any(|master| nodes.get(master).is_some_and(|node| node.link.is_connected()))
    }

    pub(super) fn last_error(&self) -> String {
        let nodes = self.nodes.lock();
        let gone = nodes.iter().find(|(_, node)| !node.link.is_connected());
        gone.map_or_else(String::new, |((host, port), node)| format!("{host}:{port}: {}", node.link.last_error()))
    }

    pub(super) async fn call(&self, call: &Call, deadline: Duration) -> Result<Value, LinkError> {
        match self.call_master(call, deadline).await {
            Err(LinkError::Moved(_)) => {
                self.refresh().await;
                self.call_master(call, deadline).await
            }
            answered => answered,
        }
    }

    async fn call_master(&self, call: &Call, deadline: Duration) -> Result<Value, LinkError> {
        let link = {
            let slots = self.slots.load();
            slots.master_of(call.first_key()).and_then(|master| Some(Arc::clone(&self.nodes.lock().get(master)?.link)))
        };
        let Some(link) = link else { return Err(LinkError::Away("no node is known to have this part".to_owned())) };
        let answered = link.call(call, deadline).await;
        if matches!(answered, Err(LinkError::Away(_) | LinkError::Late(_))) {
            self.stale.notify_one();
        }
        answered
    }

    /// Asks one node after the other who has what, until one knows.
    async fn refresh(&self) -> bool {
        let masters: Vec<Address> = self.slots.load().masters().cloned().collect();
        for address in masters.iter().chain(&self.seeds) {
            let Some(link) = self.link(address) else { continue };
            let answer = link.command(redis::cmd("CLUSTER").arg("SLOTS"), DEADLINE).await;
            let slots = answer.ok().and_then(|answer| Slots::read(&answer, address));
            if let Some(slots) = slots.filter(|slots| slots.masters().next().is_some()) {
                slots.masters().for_each(|master| drop(self.link(master)));
                let is_needed = |address: &Address| slots.masters().any(|master| master == address);
                self.nodes.lock().retain(|address, _| is_needed(address) || self.seeds.contains(address));
                self.slots.store(Arc::new(slots));
                return true;
            }
        }
        false
    }

    /// The connection to a node, made from now on if it is new; none if there can be none.
    fn link(&self, address: &Address) -> Option<Arc<NodeLink>> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Some(Arc::clone(&node.link));
        }
        let link = Arc::new(NodeLink::new(Dialler::Node(Box::new(self.settings.client(&address.0, address.1).ok()?))));
        let kept = Arc::clone(&link);
        let keep = async move { supervised("node link", RESTART_PAUSE, || Arc::clone(&kept).keep()).await };
        let keeping = tokio::spawn(keep);
        nodes.insert(address.clone(), Node { link: Arc::clone(&link), keeping });
        Some(link)
    }
}
