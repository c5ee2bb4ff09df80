//! Requests in flight: the load of each instance, as routers report it.

use std::collections::BTreeSet;
use std::time::Duration;

use flash_indexer_core::WorkerId;
use flash_indexer_core::keyed::KeyedMap;
use flash_indexer_types::ModelKey;

/// A request, as its router names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// Model of the request.
    pub model: ModelKey,
    /// Name of the request, unique in the model.
    pub request_id: String,
}

/// A request that was sent to an instance and has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlightRequest {
    /// Id of the instance.
    pub worker: WorkerId,
    /// Blocks of its prompt, which it uses until it has finished.
    pub blocks: u32,
    /// Blocks of its prompt that the instance has to compute; zero after it has.
    pub prefill_blocks: u32,
}

/// Requests in flight of one instance, added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstanceLoad {
    /// Number of requests.
    pub requests: u32,
    /// Blocks that are still to be computed.
    pub prefill_blocks: u64,
    /// Blocks in use.
    pub active_blocks: u64,
}

/// Requests in flight of all models. A request is counted until its router reports its end, or its time to live has passed: a
/// router may have crashed. Each operation costs O(log n).
#[derive(Debug)]
pub struct InFlight {
    requests_max: usize,
    requests: KeyedMap<RequestKey, (InFlightRequest, Duration)>,
    expirations: BTreeSet<(Duration, RequestKey)>,
    loads: KeyedMap<WorkerId, InstanceLoad>,
}

impl InFlight {
    /// No requests. Beyond `requests_max`, the requests that expire first are dropped.
    #[must_use]
    pub fn new(requests_max: usize) -> Self {
        Self {
            requests_max: requests_max.max(1),
            requests: KeyedMap::default(),
            expirations: BTreeSet::new(),
            loads: KeyedMap::default(),
        }
    }

    /// Records a request until `expires`. A request of the same name is replaced. Returns the number of requests that were dropped
    /// for it.
    pub fn begin(&mut self, key: RequestKey, request: InFlightRequest, now: Duration, expires: Duration) -> u64 {
        self.expire(now);
        self.end(&key);
        let mut dropped = 0;
        while self.requests.len() >= self.requests_max
            && let Some((_, first)) = self.expirations.first().cloned()
        {
            self.end(&first);
            dropped += 1;
        }
        let load = self.loads.entry(request.worker).or_default();
        load.requests += 1;
        load.prefill_blocks += u64::from(request.prefill_blocks);
        load.active_blocks += u64::from(request.blocks);
        self.expirations.insert((expires, key.clone()));
        self.requests.insert(key, (request, expires));
        dropped
    }

    /// Records that the prompt of a request is computed. False if the request is not in flight.
    pub fn end_prefill(&mut self, key: &RequestKey) -> bool {
        let Some((request, _)) = self.requests.get_mut(key) else { return false };
        if let Some(load) = self.loads.get_mut(&request.worker) {
            load.prefill_blocks -= u64::from(request.prefill_blocks);
        }
        request.prefill_blocks = 0;
        true
    }

    /// Records that a request has finished. False if it is not in flight.
    pub fn end(&mut self, key: &RequestKey) -> bool {
        let Some((request, expires)) = self.requests.remove(key) else { return false };
        self.expirations.remove(&(expires, key.clone()));
        if let Some(load) = self.loads.get_mut(&request.worker) {
            load.requests -= 1;
            load.prefill_blocks -= u64::from(request.prefill_blocks);
            load.active_blocks -= u64::from(request.blocks);
            if load.requests == 0 {
                self.loads.remove(&request.worker);
            }
        }
        true
    }

    /// Drops the requests whose time to live has passed.
    pub fn expire(&mut self, now: Duration) {
        while let Some((expires, first)) = self.expirations.first().cloned()
            && expires <= now
        {
            self.end(&first);
        }
    }

    /// The load of an instance.
    #[must_use]
    pub fn load(&self, worker: WorkerId) -> InstanceLoad {
        self.loads.get(&worker).copied().unwrap_or_default()
    }

    /// Number of requests.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.requests.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(name: u8) -> RequestKey {
        RequestKey { model: ModelKey::new("m", None), request_id: name.to_string() }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin { name: u8, worker: u64, blocks: u32, prefill: u32, ttl: u64 },
        EndPrefill(u8),
        End(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0_u8..8, 0_u64..3, 0_u32..9, 0_u32..9, 1_u64..20)
                .prop_map(|(name, worker, blocks, prefill, ttl)| Step::Begin { name, worker, blocks, prefill, ttl }),
            1 => (0_u8..8).prop_map(Step::EndPrefill),
            1 => (0_u8..8).prop_map(Step::End),
        ]
    }

    proptest! {
        /// Compared with a list of the requests that is summed on each step.
        #[test]
        fn loads_are_the_sums_of_the_requests_in_flight(steps in prop::collection::vec(step(), 1..80), max in 1_usize..6) {
            let mut in_flight = InFlight::new(max);
            let mut listed: BTreeMap<u8, (u64, u32, u32, u64)> = BTreeMap::new();
            for (now, step) in (0_u64..).zip(steps) {
                let moment = Duration::from_secs(now);
                in_flight.expire(moment);
                listed.retain(|_, (.., expires)| *expires > now);
                match step {
                    Step::Begin { name, worker, blocks, prefill, ttl } => {
                        listed.remove(&name);
                        let mut dropped = 0;
                        while listed.len() >= max {
                            let (&first, _) = listed.iter().min_by_key(|(name, (.., expires))| (*expires, **name)).expect("one");
                            listed.remove(&first);
                            dropped += 1;
                        }
                        listed.insert(name, (worker, blocks, prefill, now + ttl));
                        let request = InFlightRequest { worker: WorkerId(worker), blocks, prefill_blocks: prefill };
                        let expires = Duration::from_secs(now + ttl);
                        prop_assert_eq!(in_flight.begin(key(name), request, moment, expires), dropped);
                    }
                    Step::EndPrefill(name) => {
                        let found = listed.get_mut(&name).map(|request| request.2 = 0);
                        prop_assert_eq!(in_flight.end_prefill(&key(name)), found.is_some());
                    }
                    Step::End(name) => prop_assert_eq!(in_flight.end(&key(name)), listed.remove(&name).is_some()),
                }
                prop_assert_eq!(in_flight.len(), listed.len());
                for worker in 0..3 {
                    let of_worker = listed.values().filter(|request| request.0 == worker);
                    let load = of_worker.fold(InstanceLoad::default(), |load, request| InstanceLoad {
                        requests: load.requests + 1,
                        prefill_blocks: load.prefill_blocks + u64::from(request.2),
                        active_blocks: load.active_blocks + u64::from(request.1),
                    });
                    prop_assert_eq!(in_flight.load(WorkerId(worker)), load);
                }
            }
        }
    }
}
