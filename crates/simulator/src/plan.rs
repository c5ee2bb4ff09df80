//! Plans: everything that a simulation does, generated from a seed before it runs.

use std::fmt;

use flash_indexer_sim::Random;

use crate::action::{Action, FaultKind, ReplyKind};
use crate::engine::{EngineSpec, PublisherFault};
use crate::plan_discovery::DiscoveryPlan;
use crate::plan_limits::LimitsPlan;
use crate::plan_repair::RepairPlan;
use crate::plan_store::{SHARING_SERVICES, SharingPlan};

/// Options of a service.
#[derive(Debug, Clone)]
pub(crate) struct ServiceSpec {
    /// Writer threads.
    pub(crate) writers: usize,
    /// Shards of each index.
    pub(crate) shards: usize,
    /// Decoder threads.
    pub(crate) decoders: usize,
    /// Limit of messages that are received and not applied yet, in bytes.
    pub(crate) queue_bytes_max: usize,
}

/// An action with the number that seeds its order of threads: removing other steps does not change it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedStep {
    /// Number of the step in the generated plan.
    pub(crate) number: u64,
    /// What happens.
    pub(crate) action: Action,
    /// The fault that it is part of.
    pub(crate) fault: Option<FaultKind>,
}

/// Everything that a simulation does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed, which also decides prompts and hashes.
    pub(crate) seed: u64,
    /// Engines, by number.
    pub(crate) engines: Vec<EngineSpec>,
    /// Services, by number.
    pub(crate) services: Vec<ServiceSpec>,
    /// Faults that may happen.
    pub(crate) faults: Vec<FaultKind>,
    /// The steps.
    pub(crate) steps: Vec<PlannedStep>,
    /// Number of nodes of the store that the services share; none without a store.
    pub(crate) store_nodes: Option<usize>,
    /// Whether the services discover their engines.
    pub(crate) has_discovery: bool,
    /// Whether the services have limits files.
    pub(crate) has_limits: bool,
    /// Whether engines publish once more after the last step, before the first recovery is checked.
    pub(crate) publishes_at_end: bool,
}

impl Plan {
    /// Generates the plan of a seed, with this number of steps.
    #[must_use]
    pub fn generate(seed: u64, steps: usize) -> Self {
        let mut random = Random::new(seed ^ 0x51f1_ed5e_ed00_0001);
        let faults: Vec<_> =
            FaultKind::ALL.into_iter().filter(|kind| !kind.has_own_sequence() && random.one_in(3)).collect();
        let mut engines = engines(&mut random);
        let mut sharing = SharingPlan::generate(seed, &mut engines);
        let service = |random: &mut Random| {
            let writers = random.within(1..4);
            let has_small_queue = faults.contains(&FaultKind::SmallQueue);
            let queue_bytes_max = if has_small_queue { random.within(8_000..30_000) } else { 64 << 20 };
            ServiceSpec {
                writers,
                shards: random.within(1..3).min(writers),
                decoders: random.within(1..3),
                queue_bytes_max,
            }
        };
        let count = 1 + usize::from(random.one_in(2));
        let count = if sharing.store_nodes.is_some() { SHARING_SERVICES } else { count };
        let services: Vec<_> = (0..count).map(|_| service(&mut random)).collect();
        let mut discovery = DiscoveryPlan::generate(seed);
        // Discovery registers refused ranks later.
        let mut limits = LimitsPlan::generate(seed, !discovery.is_used);
        let mut repair = RepairPlan::generate(seed, faults.contains(&FaultKind::ServiceRestart));
        let mut generator = Generator { random, engines: &engines, services: services.len(), faults: &faults };
        let steps = (0..steps as u64).flat_map(|number| {
            let (action, fault) = generator.action();
            let added = [
                sharing.action(),
                discovery.action(services.len(), engines.len()),
                repair.action(services.len(), engines.len()),
                repair.removal(engines.len()).map(|action| (action, None)),
                limits.action(services.len()),
            ];
            let added = (32..).zip(added).filter_map(move |(bit, added)| {
                let (action, fault) = added?;
                Some(PlannedStep { number: number | 1_u64 << bit, action, fault })
            });
            // Engines that are registered manually are not discovered.
            let is_kept = !discovery.is_used || fault != Some(FaultKind::Churn);
            is_kept.then_some(PlannedStep { number, action, fault }).into_iter().chain(added)
        });
        let steps = steps.collect();
        let publishes_at_end = !generator.random.one_in(4);
        let (store_nodes, has_discovery, has_limits) = (sharing.store_nodes, discovery.is_used, limits.is_used);
        Self { seed, engines, services, faults, steps, store_nodes, has_discovery, has_limits, publishes_at_end }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  faults: {:?}", self.faults)?;
        for (number, engine) in self.engines.iter().enumerate() {
            writeln!(f, "  engine {number}: {engine:?}")?;
        }
        for (number, service) in self.services.iter().enumerate() {
            writeln!(f, "  service {number}: {service:?}")?;
        }
        for PlannedStep { number, action, .. } in &self.steps {
            writeln!(f, "  {number:>4} {action:?}")?;
        }
        writeln!(f, "  {} steps", self.steps.len())
    }
}

fn engines(random: &mut Random) -> Vec<EngineSpec> {
    let mut engines = Vec::new();
    let models = random.within(1..3);
    for instance in 1..=random.within(1..5) as u64 {
        let spec = EngineSpec {
            instance,
            model: random.within(0..models),
            host: 1,
            dp_ranks: vec![0],
            has_replay: !random.one_in(4),
            buffer_messages: if random.one_in(3) { random.within(1..30) } else { 10_000 },
            cache_blocks: random.within(10..40),
            host_blocks: random.one_in(3).then(|| random.within(10..60)),
            has_fixed_hashes: random.one_in(3),
            history: if random.one_in(2) { random.within(0..12) } else { 0 },
            has_array_events: random.one_in(3),
            service: None,
        };
        match random.within(0..4) {
            0 => engines.push(EngineSpec { dp_ranks: vec![0, 1], ..spec }),
            1 => engines.extend([spec.clone(), EngineSpec { dp_ranks: vec![1], ..spec }]),
            _ => engines.push(spec),
        }
    }
    engines
}

/// Generates the actions of a plan.
struct Generator<'p> {
    random: Random,
    engines: &'p [EngineSpec],
    services: usize,
    faults: &'p [FaultKind],
}

impl Generator<'_> {
    fn action(&mut self) -> (Action, Option<FaultKind>) {
        let fault = self.random.within(0..10) < 3;
        match self.faults.len() {
            count if fault && count > 0 => {
                let kind = self.faults[self.random.within(0..count)];
                (self.faulty(kind), Some(kind))
            }
            _ => (self.regular(), None),
        }
    }

    fn engine(&mut self) -> usize {
        self.random.within(0..self.engines.len())
    }

    fn service(&mut self) -> usize {
        self.random.within(0..self.services)
    }

    fn rank(&mut self, engine: usize) -> usize {
        self.random.within(0..self.engines[engine].dp_ranks.len())
    }

    fn prompt(&mut self) -> usize {
        self.random.within(0..1_000)
    }

    fn regular(&mut self) -> Action {
        let (service, engine) = (self.service(), self.engine());
        let rank = self.rank(engine);
        match self.random.within(0..40) {
            0..10 => Action::Serve { engine, rank, prompt: self.prompt() },
            10..12 => Action::Burst { engine, prompts: self.random.within(2..20) },
            12 => Action::Remove { engine, rank, prompt: self.prompt(), depth: self.random.within(0..8) },
            13 if self.random.one_in(3) => Action::Clear { engine, rank },
            13..20 => Action::Deliver { service, engine, count: self.random.within(1..8) },
            20..24 => Action::Answer { service, engine, kind: ReplyKind::Whole, cut: 0 },
            24..29 => Action::DeliverReply { service, engine, count: self.random.within(1..40) },
            29..35 => Action::Run { service, steps: self.random.within(1..12) },
            35..37 => Action::Settle { service },
            37 => Action::Flow,
            38 => Action::PassTime { ms: self.random.within(1..200) as u64 },
            _ => Action::PassTime { ms: self.random.within(200..3_000) as u64 },
        }
    }

    fn faulty(&mut self, kind: FaultKind) -> Action {
        let (service, engine) = (self.service(), self.engine());
        let rank = self.rank(engine);
        let odd = |oddity, prompt| Action::Odd { engine, rank, prompt, oddity };
        match kind {
            FaultKind::Loss => {
                let (count, is_newest) = (self.random.within(1..5), self.random.one_in(2));
                Action::Lose { service, engine, count, is_newest }
            }
            FaultKind::Duplicate => Action::Duplicate { service, engine },
            FaultKind::Damage => Action::Corrupt { service, engine },
            FaultKind::Disconnect => match self.random.one_in(2) {
                true => Action::Disconnect { service, engine, kept: self.random.within(0..4) },
                false => Action::Connect { service, engine },
            },
            FaultKind::EngineRestart => match self.random.one_in(3) {
                true => Action::RestartEngine { engine, kept: self.random.within(0..4) },
                false => Action::Connect { service, engine },
            },
            FaultKind::ServiceRestart => match self.random.within(0..8) {
                0..2 => Action::RestartService { service, is_held: !self.random.one_in(4) },
                2..6 => Action::ReadDump { service },
                _ => Action::Recover { service, is_cut: self.random.one_in(4) },
            },
            FaultKind::Replay => match self.random.within(0..16) {
                0 => Action::PassTime { ms: self.random.within(3_000..40_000) as u64 },
                1 => Action::Silence { seconds: self.random.within(5..50) as u64 },
                _ => {
                    let kind = ReplyKind::FAULTS[self.random.within(0..ReplyKind::FAULTS.len())];
                    Action::Answer { service, engine, kind, cut: self.random.next() }
                }
            },
            FaultKind::UnknownEvent => odd(PublisherFault::UnknownEvent, self.prompt()),
            FaultKind::Unreadable => odd(PublisherFault::Unreadable, self.prompt()),
            FaultKind::WriterPanic if self.random.one_in(3) => odd(PublisherFault::Panic, self.prompt()),
            FaultKind::DecoderPanic if self.random.one_in(3) => {
                Action::PanicDecoder { service, engine, is_whole_thread: self.random.one_in(2) }
            }
            FaultKind::WriterPanic | FaultKind::DecoderPanic => Action::Run { service, steps: 5 },
            FaultKind::SmallQueue => match self.random.within(0..3) {
                0 => Action::Deliver { service, engine, count: self.random.within(20..80) },
                // The sockets read the arrived messages, and the decoders and writers lag behind.
                1 => Action::Run { service, steps: self.random.within(1..4) },
                _ => Action::Burst { engine, prompts: self.random.within(5..40) },
            },
            // A message must fit into the queue.
            FaultKind::Large if self.faults.contains(&FaultKind::SmallQueue) => self.regular(),
            FaultKind::Large => odd(PublisherFault::Large, self.prompt()),
            FaultKind::ClockStep => Action::StepClock { ms: self.random.within(0..200_000_000) as i64 - 100_000_000 },
            FaultKind::Store | FaultKind::Discovery | FaultKind::Repair | FaultKind::Limits => {
                unreachable!("its steps have a sequence of their own")
            }
            FaultKind::Churn => match self.random.one_in(2) {
                true => {
                    let is_whole = self.random.one_in(2);
                    Action::Unregister { service, engine, rank: (!is_whole).then_some(rank) }
                }
                false => Action::Register { service, engine },
            },
        }
    }
}
