use std::ops::Range;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use flash_indexer_types::{InstanceId, ModelKey};

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

/// What is registered, and who may not be.
#[derive(Default)]
struct Registry {
    kept: BTreeMap<RankId, OwnedRank>,
    refused: BTreeSet<RankId>,
}

impl Registry {
    fn keep(&mut self, owner: Owner, registration: Registration) {
        self.kept.insert(registration.rank_id(), OwnedRank { owner, registration });
    }

    /// Carries everything out, and returns what it was.
    fn follow(&mut self, reconciler: &mut Reconciler, now: Instant) -> Vec<Step> {
        let steps = reconciler.steps(&self.kept, now);
        for step in &steps {
            match step {
                Step::Unregister(rank) => {
                    let gone = self.kept.remove(rank).expect("only what is registered is unregistered");
                    assert_ne!(gone.owner, Owner::Manual, "what people register stays");
                }
                Step::Register { registration, source } => {
                    let rank = registration.rank_id();
                    let is_there = self.kept.get(&rank).is_some_and(|kept| kept.registration == *registration);
                    let result = match self.refused.contains(&rank) && !is_there {
                        true => Err("refused".to_owned()),
                        false => Ok(()),
                    };
                    if result.is_ok() {
                        let known = self.kept.get(&rank);
                        assert!(known.is_none_or(|known| known.registration == *registration), "unregister it first");
                        self.keep(Owner::Source(Arc::clone(source)), registration.clone());
                    }
                    reconciler.tried(registration, result, now);
                }
            }
        }
        steps
    }

    fn endpoint(&self, number: u64) -> Option<&str> {
        self.kept.get(&rank(number)).map(|kept| kept.registration.endpoint.as_str())
    }
}

/// A reconciler of the sources `first` and `second`.
fn reconciler() -> Reconciler {
    Reconciler::new(GRACE, ["first".into(), "second".into()])
}

fn standing(reconciler: &Reconciler, source: usize, registry: &Registry, number: u64) -> Option<TargetOutcome> {
    let mut standings = reconciler.standings(source, &registry.kept);
    standings.find(|(registration, _)| registration.rank_id() == rank(number)).map(|(_, standing)| standing)
}

#[test]
fn an_address_that_was_handed_on_is_left_at_once() {
    let (mut reconciler, mut registry, start) = (reconciler(), Registry::default(), Instant::now());
    let shared = "tcp://10.0.0.7:5557".to_owned();
    reconciler.answers(0, targets([at_endpoint(1, shared.clone())]), start);
    registry.follow(&mut reconciler, start);
    reconciler.answers(0, targets([at_endpoint(2, shared.clone())]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!((registry.endpoint(1), registry.endpoint(2)), (None, Some(shared.as_str())));
}

#[test]
fn the_first_source_goes_before_the_second_and_both_can_see_it() {
    let (mut reconciler, mut registry, start) = (reconciler(), Registry::default(), Instant::now());
    reconciler.answers(1, targets([at(1, 2)]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!(registry.endpoint(1), Some("tcp://host-1:5002"), "nobody else names it");
    reconciler.answers(0, targets([at(1, 1)]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!(registry.endpoint(1), Some("tcp://host-1:5001"));
    assert_eq!(standing(&reconciler, 0, &registry, 1), Some(TargetOutcome::Registered));
    let overruled = TargetOutcome::Overruled { by: "first".into(), endpoint: "tcp://host-1:5001".to_owned() };
    assert_eq!(standing(&reconciler, 1, &registry, 1), Some(overruled));
    // What is about to go does not hold up what is there.
    reconciler.answers(0, targets([]), start);
    registry.follow(&mut reconciler, start);
    assert_eq!(registry.endpoint(1), Some("tcp://host-1:5002"));
    assert_eq!(standing(&reconciler, 0, &registry, 1), Some(TargetOutcome::Leaving));
}

#[test]
fn room_is_made_before_it_is_taken() {
    let (mut reconciler, mut registry, start) = (reconciler(), Registry::default(), Instant::now());
    reconciler.answers(0, targets([at(2, 0)]), start);
    registry.follow(&mut reconciler, start);
    reconciler.answers(0, targets([at(1, 0)]), start);
    registry.follow(&mut reconciler, start);
    reconciler.answers(0, targets([at(0, 0), at(1, 1)]), start + GRACE);
    let steps = registry.follow(&mut reconciler, start + GRACE);
    let first_registration = steps.iter().position(|step| matches!(step, Step::Register { .. }));
    let last_departure = steps.iter().rposition(|step| matches!(step, Step::Unregister(_)));
    assert!(last_departure < first_registration, "{steps:?}");
    assert_eq!(steps.len(), 4, "one leaves, one comes, one moves: {steps:?}");
}

/// Something that happens.
#[derive(Debug, Clone)]
enum TestEvent {
    Answers(usize, BTreeMap<u64, u8>),
    Fails(usize),
    Passes(u64),
    RegisteredByHand(u64, u8),
    UnregisteredByHand(u64),
    IsRefused(u64),
    IsRefusedNoMore(u64),
}

fn happening() -> impl Strategy<Value = TestEvent> {
    let set = proptest::collection::btree_map(RANKS, 0u8..3, 0..4);
    prop_oneof![
        6 => (0usize..2, set).prop_map(|(source, set)| TestEvent::Answers(source, set)),
        2 => (0usize..2).prop_map(TestEvent::Fails),
        4 => (1u64..12).prop_map(TestEvent::Passes),
        1 => (RANKS, 0u8..3).prop_map(|(number, address)| TestEvent::RegisteredByHand(number, address)),
        2 => RANKS.prop_map(TestEvent::UnregisteredByHand),
        1 => RANKS.prop_map(TestEvent::IsRefused),
        2 => RANKS.prop_map(TestEvent::IsRefusedNoMore),
    ]
}

/// What has happened so far, and what should be registered after all of it: one rank at a time, from the start.
#[derive(Default)]
struct History(Vec<(Instant, TestEvent)>);

/// One rank as the rules have it.
#[derive(Default)]
struct Rules {
    /// By source: the address that it named last, and since when it does not.
    wishes: [Option<(u8, Option<Instant>)>; 2],
    answers: [bool; 2],
    has_answered: [bool; 2],
    /// Address, and whether that is by hand.
    registered: Option<(u8, Registrar)>,
    tried: Option<(u8, Attempt)>,
    unnamed_since: Option<Instant>,
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
    Dismissed,
}

impl History {
    fn expected(&self, number: u64, taken_over: Option<u8>) -> Option<(u8, Registrar)> {
        let mut rules = Rules { registered: taken_over.map(|address| (address, Registrar::Peer)), ..Rules::default() };
        for (now, happening) in &self.0 {
            rules.happens(number, happening, *now);
            rules.settle(*now);
        }
        rules.registered
    }
}

impl Rules {
    fn happens(&mut self, number: u64, happening: &TestEvent, now: Instant) {
        match happening {
            TestEvent::Answers(source, set) => {
                (self.answers[*source], self.has_answered[*source]) = (true, true);
                match (set.get(&number), &mut self.wishes[*source]) {
                    (Some(&address), wish) => *wish = Some((address, None)),
                    (None, Some((_, gone @ None))) => *gone = Some(now),
                    (None, _) => {}
                }
            }
            TestEvent::Fails(source) => self.answers[*source] = false,
            TestEvent::RegisteredByHand(of, address) if *of == number => match self.registered {
                None => self.registered = Some((*address, Registrar::Manual)),
                Some((known, _)) if known == *address => self.registered = Some((known, Registrar::Manual)),
                Some(_) => {}
            },
            TestEvent::UnregisteredByHand(of) if *of == number => self.registered = None,
            TestEvent::IsRefused(of) if *of == number => self.is_refused = true,
            TestEvent::IsRefusedNoMore(of) if *of == number => self.is_refused = false,
            _ => {}
        }
    }

    fn settle(&mut self, now: Instant) {
        for source in 0..2 {
            if let Some((_, Some(gone))) = self.wishes[source]
                && self.answers[source]
                && now - gone >= GRACE
            {
                self.wishes[source] = None;
            }
        }
        if self.wishes == [None, None] {
            self.tried = None;
        }
        if let (None, Some((_, tried @ Attempt::Registered))) = (self.registered, &mut self.tried) {
            *tried = Attempt::Dismissed;
        }
        let named = self.wishes.iter().flatten().find(|(_, gone)| gone.is_none()).map(|&(address, _)| address);
        match (self.registered, named) {
            (Some((_, Registrar::Manual)), _) => {}
            (registered, Some(address)) => {
                let stands_back = self.tried.is_some_and(|(of, tried)| match tried {
                    Attempt::Dismissed => of == address,
                    Attempt::Until(then) => of == address && now < then,
                    Attempt::Registered => false,
                });
                match registered {
                    Some((known, Registrar::Source)) if known == address => {}
                    None if stands_back => {}
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
            (Some((address, who)), None) => {
                let is_leaving = self.wishes.iter().flatten().any(|(of, _)| *of == address);
                match who {
                    _ if is_leaving => {}
                    Registrar::Peer if self.answers == [true, true] => {
                        let since = *self.unnamed_since.get_or_insert(now);
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
        self.unnamed_since = None;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// What is registered is what the rules say, whatever happens; once nothing happens any more there is nothing
    /// left to do, and it is what sources name.
    #[test]
    fn registrations_follow_the_rules(
        taken_over in proptest::collection::btree_map(RANKS, 0u8..3, 0..3),
        happenings in vec(happening(), 1..40),
    ) {
        let (mut reconciler, mut registry, mut history) = (reconciler(), Registry::default(), History::default());
        for (&number, &address) in &taken_over {
            registry.keep(Owner::Peer, at(number, address));
        }
        let mut now = Instant::now();
        for happening in happenings {
            match &happening {
                TestEvent::Answers(source, set) => {
                    let named = targets(set.iter().map(|(&number, &address)| at(number, address)));
                    reconciler.answers(*source, named, now);
                }
                TestEvent::Fails(source) => reconciler.fails(*source),
                TestEvent::Passes(seconds) => now += Duration::from_secs(*seconds),
                TestEvent::RegisteredByHand(number, address) => {
                    let known = registry.kept.get(&rank(*number)).map(|kept| &kept.registration);
                    if known.is_none_or(|known| *known == at(*number, *address)) {
                        registry.keep(Owner::Manual, at(*number, *address));
                    }
                }
                TestEvent::UnregisteredByHand(number) => drop(registry.kept.remove(&rank(*number))),
                TestEvent::IsRefused(number) => drop(registry.refused.insert(rank(*number))),
                TestEvent::IsRefusedNoMore(number) => drop(registry.refused.remove(&rank(*number))),
            }
            history.0.push((now, happening));
            registry.follow(&mut reconciler, now);
            for number in RANKS {
                let expected = history.expected(number, taken_over.get(&number).copied());
                let kept = registry.kept.get(&rank(number));
                let wanted = expected.map(|(address, _)| at(number, address));
                prop_assert_eq!(
                    kept.map(|kept| &kept.registration),
                    wanted.as_ref(),
                    "instance {} after {:?}", number, history.0
                );
                let who = kept.map(|kept| match kept.owner {
                    Owner::Manual => Registrar::Manual,
                    Owner::Source(_) => Registrar::Source,
                    Owner::Peer => Registrar::Peer,
                    Owner::Pod => panic!("no pod connects here"),
                });
                prop_assert_eq!(who, expected.map(|(_, who)| who));
            }
            let again = reconciler.steps(&registry.kept, now);
            prop_assert_eq!(again, Vec::new(), "everything was done");
        }
    }
}
