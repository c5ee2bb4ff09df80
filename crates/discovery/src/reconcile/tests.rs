use std::ops::Range;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_types::{InstanceId, ModelKey};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(10);
const RANKS: Range<u64> = 0..4;

fn rank(number: u64) -> RankId {
    RankId { model: ModelKey::new("m", None), instance: InstanceId::number(number), dp_rank: DpRank(0) }
}

/// Instance `number` at one of its addresses.
fn at(number: u64, address: u8) -> Registration {
    at_endpoint(number, format!("tcp://host-{number}:{}", 5_000 + u16::from(address)))
}

fn at_endpoint(number: u64, endpoint: String) -> Registration {
    let RankId { model, instance, dp_rank } = rank(number);
    let block_size = BlockSize::new(16).expect("more than 0");
    Registration { dp_rank, ..Registration::new(instance, model, endpoint, block_size) }
}

fn targets(registrations: impl IntoIterator<Item = Registration>) -> Arc<Targets> {
    Arc::new(registrations.into_iter().map(|registration| (registration.rank_id(), registration)).collect())
}

/// Registered ranks, and ranks whose registration is refused.
#[derive(Default)]
struct Registry {
    owned: BTreeMap<RankId, OwnedRank>,
    refused: BTreeSet<RankId>,
}

impl Registry {
    fn keep(&mut self, owner: Owner, registration: Registration) {
        self.owned.insert(registration.rank_id(), OwnedRank { owner, registration });
    }

    /// Carries out all steps, and returns them.
    fn follow(&mut self, reconciler: &mut Reconciler, now: Instant) -> Vec<Step> {
        let steps = reconciler.steps(&self.owned, now);
        for step in &steps {
            match step {
                Step::Unregister(rank) => {
                    let absent = self.owned.remove(rank).expect("only what is registered is unregistered");
                    assert_ne!(absent.owner, Owner::Manual, "manual registrations stay");
                }
                Step::Register { registration, source } => {
                    let rank = registration.rank_id();
                    let is_there = self.owned.get(&rank).is_some_and(|owned| owned.registration == *registration);
                    let result = match self.refused.contains(&rank) && !is_there {
                        true => Err("refused".to_owned()),
                        false => Ok(()),
                    };
                    if result.is_ok() {
                        let known = self.owned.get(&rank);
                        assert!(known.is_none_or(|known| known.registration == *registration), "unregister it first");
                        self.keep(Owner::Source(Arc::clone(source)), registration.clone());
                    }
                    reconciler.record_attempt(registration, result, now);
                }
            }
        }
        steps
    }

    fn endpoint(&self, number: u64) -> Option<&str> {
        self.owned.get(&rank(number)).map(|owned| owned.registration.options.endpoint.as_str())
    }
}

/// A reconciler of the sources `first` and `second`.
fn reconciler() -> Reconciler {
    Reconciler::new(GRACE, ["first".into(), "second".into()])
}

fn outcome(reconciler: &Reconciler, source: usize, registry: &Registry, number: u64) -> Option<TargetOutcome> {
    let mut outcomes = reconciler.outcomes(source, &registry.owned);
    outcomes.find(|(registration, _)| registration.rank_id() == rank(number)).map(|(_, outcome)| outcome)
}

#[test]
fn a_rank_whose_address_is_reassigned_is_unregistered_at_once() {
    let (mut reconciler, mut registry, start) = (reconciler(), Registry::default(), Instant::now());
    let shared = "tcp://10.0.0.7:5557".to_owned();
    reconciler.source_reported(0, targets([at_endpoint(1, shared.clone())]), start);
    registry.follow(&mut reconciler, start);
    reconciler.source_reported(0, targets([at_endpoint(2, shared.clone())]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!((registry.endpoint(1), registry.endpoint(2)), (None, Some(shared.as_str())));
}

#[test]
fn the_first_source_takes_precedence_and_both_report_it() {
    let (mut reconciler, mut registry, start) = (reconciler(), Registry::default(), Instant::now());
    reconciler.source_reported(1, targets([at(1, 2)]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!(registry.endpoint(1), Some("tcp://host-1:5002"), "no other source names it");
    reconciler.source_reported(0, targets([at(1, 1)]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!(registry.endpoint(1), Some("tcp://host-1:5001"));
    assert_eq!(outcome(&reconciler, 0, &registry, 1), Some(TargetOutcome::Registered));
    let overruled = TargetOutcome::Overruled { by: "first".into(), endpoint: "tcp://host-1:5001".to_owned() };
    assert_eq!(outcome(&reconciler, 1, &registry, 1), Some(overruled));
    // A rank in its grace period does not delay another source's registration.
    reconciler.source_reported(0, targets([]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!(registry.endpoint(1), Some("tcp://host-1:5002"));
    assert_eq!(outcome(&reconciler, 0, &registry, 1), Some(TargetOutcome::Leaving));
}

/// A service that recovers from a peer receives reports and carries out no steps.
#[test]
fn a_rank_of_a_peer_that_sources_left_out_during_a_recovery_is_unregistered_after_one_grace_period() {
    let (mut reconciler, mut registry, start) = (reconciler(), Registry::default(), Instant::now());
    registry.keep(Owner::Peer, at(1, 1));
    reconciler.source_reported(0, targets([at(1, 1)]), start);
    reconciler.source_reported(1, targets([]), start);
    reconciler.source_reported(0, targets([]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!(registry.endpoint(1), Some("tcp://host-1:5001"));
    registry.follow(&mut reconciler, start + GRACE);
    assert_eq!(registry.endpoint(1), None);
}

#[test]
fn ranks_are_unregistered_before_others_are_registered() {
    let (mut reconciler, mut registry, start) = (reconciler(), Registry::default(), Instant::now());
    reconciler.source_reported(0, targets([at(2, 0)]), start);
    registry.follow(&mut reconciler, start);
    reconciler.source_reported(0, targets([at(1, 0)]), start);
    registry.follow(&mut reconciler, start);
    reconciler.source_reported(0, targets([at(0, 0), at(1, 1)]), start + GRACE);
    let steps = registry.follow(&mut reconciler, start + GRACE);
    let first_registration = steps.iter().position(|step| matches!(step, Step::Register { .. }));
    let last_unregistration = steps.iter().rposition(|step| matches!(step, Step::Unregister(_)));
    assert!(last_unregistration < first_registration, "{steps:?}");
    assert_eq!(steps.len(), 4, "one is unregistered, one registered, one moved: {steps:?}");
}

/// Events of a test.
#[derive(Debug, Clone)]
enum TestEvent {
    Reports(usize, BTreeMap<u64, u8>),
    Fails(usize),
    TimePasses(u64),
    RegisteredManually(u64, u8),
    UnregisteredManually(u64),
    Refuse(u64),
    AllowAgain(u64),
}

fn any_event() -> impl Strategy<Value = TestEvent> {
    let set = proptest::collection::btree_map(RANKS, 0u8..3, 0..4);
    prop_oneof![
        6 => (0usize..2, set).prop_map(|(source, set)| TestEvent::Reports(source, set)),
        2 => (0usize..2).prop_map(TestEvent::Fails),
        4 => (1u64..12).prop_map(TestEvent::TimePasses),
        1 => (RANKS, 0u8..3).prop_map(|(number, address)| TestEvent::RegisteredManually(number, address)),
        2 => RANKS.prop_map(TestEvent::UnregisteredManually),
        1 => RANKS.prop_map(TestEvent::Refuse),
        2 => RANKS.prop_map(TestEvent::AllowAgain),
    ]
}

/// Events so far, from which the expected registration of each rank is computed from the start.
#[derive(Default)]
struct History(Vec<(Instant, TestEvent)>);

/// Model of one rank.
#[derive(Default)]
struct Rules {
    /// For each source: the address that it named last, and the time since which it no longer does.
    desired: [Option<(u8, Option<Instant>)>; 2],
    is_reporting: [bool; 2],
    has_reported: [bool; 2],
    /// Address and owner.
    registered: Option<(u8, Registrar)>,
    tried: Option<(u8, Attempt)>,
    unclaimed_since: Option<Instant>,
    is_refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Registrar {
    Manual,
    Source,
    Peer,
}

#[derive(Clone, Copy, PartialEq)]
enum Attempt {
    Registered,
    Until(Instant),
    ManuallyUnregistered,
}

impl History {
    fn expected(&self, number: u64, imported: Option<u8>) -> Option<(u8, Registrar)> {
        let mut rules = Rules { registered: imported.map(|address| (address, Registrar::Peer)), ..Rules::default() };
        for (now, event) in &self.0 {
            rules.apply(number, event, *now);
            rules.settle(*now);
        }
        rules.registered
    }
}

impl Rules {
    fn apply(&mut self, number: u64, event: &TestEvent, now: Instant) {
        match event {
            TestEvent::Reports(source, set) => {
                (self.is_reporting[*source], self.has_reported[*source]) = (true, true);
                match (set.get(&number), &mut self.desired[*source]) {
                    (Some(&address), desired_rank) => *desired_rank = Some((address, None)),
                    (None, Some((_, absent @ None))) => *absent = Some(now),
                    (None, _) => {}
                }
            }
            TestEvent::Fails(source) => self.is_reporting[*source] = false,
            TestEvent::RegisteredManually(of, address) if *of == number => match self.registered {
                None => self.registered = Some((*address, Registrar::Manual)),
                Some((known, _)) if known == *address => self.registered = Some((known, Registrar::Manual)),
                Some(_) => {}
            },
            TestEvent::UnregisteredManually(of) if *of == number => self.registered = None,
            TestEvent::Refuse(of) if *of == number => self.is_refused = true,
            TestEvent::AllowAgain(of) if *of == number => self.is_refused = false,
            _ => {}
        }
    }

    fn settle(&mut self, now: Instant) {
        for source in 0..2 {
            if let Some((_, Some(absent))) = self.desired[source]
                && self.is_reporting[source]
                && now - absent >= GRACE
            {
                self.desired[source] = None;
            }
        }
        if self.desired == [None, None] {
            self.tried = None;
        }
        if let (None, Some((_, tried @ Attempt::Registered))) = (self.registered, &mut self.tried) {
            *tried = Attempt::ManuallyUnregistered;
        }
        let desired_ranks =
            self.desired.iter().flatten().find(|(_, absent)| absent.is_none()).map(|&(address, _)| address);
        match (self.registered, desired_ranks) {
            (Some((_, Registrar::Manual)), _) => {}
            (registered, Some(address)) => {
                let backs_off = self.tried.is_some_and(|(of, tried)| match tried {
                    Attempt::ManuallyUnregistered => of == address,
                    Attempt::Until(then) => of == address && now < then,
                    Attempt::Registered => false,
                });
                match registered {
                    Some((known, Registrar::Source)) if known == address => {}
                    None if backs_off => {}
                    _ if self.is_refused && registered.is_none_or(|(known, _)| known != address) => {
                        self.registered = None;
                        self.tried = Some((address, Attempt::Until(now + RETRY)));
                    }
                    _ => {
                        self.registered = Some((address, Registrar::Source));
                        self.tried = Some((address, Attempt::Registered));
                    }
                }
            }
            (Some((address, owner)), None) => {
                let is_in_grace = self.desired.iter().flatten().any(|(of, _)| *of == address);
                match owner {
                    _ if is_in_grace => {}
                    Registrar::Peer if self.is_reporting == [true, true] => {
                        let since = *self.unclaimed_since.get_or_insert(now);
                        if now - since >= GRACE {
                            self.registered = None;
                        }
                        return;
                    }
                    Registrar::Peer => {}
                    Registrar::Source | Registrar::Manual => self.registered = None,
                }
            }
            (None, None) => {}
        }
        self.unclaimed_since = None;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// After every event the registrations equal those of the model, and no step is left.
    #[test]
    fn registrations_follow_the_rules(
        imported in proptest::collection::btree_map(RANKS, 0u8..3, 0..3),
        events in vec(any_event(), 1..40),
    ) {
        let (mut reconciler, mut registry, mut history) = (reconciler(), Registry::default(), History::default());
        for (&number, &address) in &imported {
            registry.keep(Owner::Peer, at(number, address));
        }
        let mut now = Instant::now();
        for event in events {
            match &event {
                TestEvent::Reports(source, set) => {
                    let desired_ranks = targets(set.iter().map(|(&number, &address)| at(number, address)));
                    reconciler.source_reported(*source, desired_ranks, now);
                }
                TestEvent::Fails(source) => reconciler.source_failed(*source),
                TestEvent::TimePasses(seconds) => now += Duration::from_secs(*seconds),
                TestEvent::RegisteredManually(number, address) => {
                    let known = registry.owned.get(&rank(*number)).map(|owned| &owned.registration);
                    if known.is_none_or(|known| *known == at(*number, *address)) {
                        registry.keep(Owner::Manual, at(*number, *address));
                    }
                }
                TestEvent::UnregisteredManually(number) => drop(registry.owned.remove(&rank(*number))),
                TestEvent::Refuse(number) => drop(registry.refused.insert(rank(*number))),
                TestEvent::AllowAgain(number) => drop(registry.refused.remove(&rank(*number))),
            }
            history.0.push((now, event));
            registry.follow(&mut reconciler, now);
            for number in RANKS {
                let expected = history.expected(number, imported.get(&number).copied());
                let owned = registry.owned.get(&rank(number));
                let wanted = expected.map(|(address, _)| at(number, address));
                prop_assert_eq!(
                    owned.map(|owned| &owned.registration),
                    wanted.as_ref(),
                    "instance {} after {:?}", number, history.0
                );
                let owner = owned.map(|owned| match owned.owner {
                    Owner::Manual => Registrar::Manual,
                    Owner::Source(_) => Registrar::Source,
                    Owner::Peer => Registrar::Peer,
                    Owner::Pod => panic!("no bound pod in this test"),
                });
                prop_assert_eq!(owner, expected.map(|(_, owner)| owner));
            }
            let again = reconciler.steps(&registry.owned, now);
            prop_assert_eq!(again, Vec::new(), "no step is left");
        }
    }
}
