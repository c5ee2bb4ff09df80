//! The simulated world: engines, networks and services, and the execution of a plan.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_registry::IndexerOptions;
use flash_indexer_sim::Random;
use flash_indexer_telemetry::clock::SimulatedTime;
use parking_lot::{MappedMutexGuard, MutexGuard};

use crate::action::{Action, DiscoveryChange, ReplyKind};
use crate::coverage::Coverage;
use crate::discovery::ServiceDiscovery;
use crate::engine::{Engine, EngineSpec};
use crate::limits_file::LimitsOfService;
use crate::network::{Link, Reply, SentMessage, Transit};
use crate::plan::{Plan, ServiceSpec};
use crate::prompts::Prompt;
use crate::service::{Service, reports};
use crate::sharing::Sharing;

/// Start of the wall clock, in milliseconds since the Unix epoch.
const SYSTEM_START_MS: u64 = 1_700_000_100_000;
/// Rounds of [`World::flow`] after which messages that are still on their way are considered an infinite loop.
const ROUNDS_MAX: usize = 10_000;
/// Longest part in which time passes for the services and for the tasks of the store, one after the other.
const SLICE_MS: u64 = 100;

/// Engines, networks and services.
pub(crate) struct World {
    pub(crate) engines: Vec<Engine>,
    pub(crate) services: Vec<Service>,
    pub(crate) prompts: Arc<Vec<Prompt>>,
    pub(crate) time: Arc<SimulatedTime>,
    pub(crate) random: Random,
    pub(crate) coverage: Coverage,
    pub(crate) plan: Plan,
    /// The store that the services share.
    pub(crate) sharing: Option<Sharing>,
    /// Limits files of the services, by the service's number; empty if they have none.
    pub(crate) limits: Vec<LimitsOfService>,
    /// Whether to print each step.
    is_verbose: bool,
}

impl World {
    pub(crate) fn new(plan: &Plan, is_verbose: bool) -> Self {
        let mut random = Random::new(plan.seed);
        let prompts = Arc::new(Prompt::pool(&mut random));
        let time = SimulatedTime::starting_at(SYSTEM_START_MS);
        let engine = |spec: &EngineSpec| Engine::new(spec.clone(), &prompts, random.next());
        let engines: Vec<_> = plan.engines.iter().map(engine).collect();
        let services = plan.services.len();
        let sharing = plan.store_nodes.map(|nodes| Sharing::new(nodes, services, random.next()));
        let limits: Vec<_> = (0..if plan.has_limits { services } else { 0 }).map(|_| LimitsOfService::new()).collect();
        let service = |(number, spec)| {
            let limits = limits.get(number);
            start_service(number, spec, &time, (sharing.as_ref(), limits), links(&engines, |_| true))
        };
        let services = plan.services.iter().enumerate().map(service).collect();
        let (coverage, plan) = (Coverage::default(), plan.clone());
        let mut world = Self { engines, services, prompts, time, random, coverage, plan, sharing, limits, is_verbose };
        for engine in 0..world.engines.len() {
            for prompt in 0..world.engines[engine].spec.history {
                let rank = prompt % world.engines[engine].spec.dp_ranks.len();
                world.publish_by(engine, |engine| engine.serve(rank, prompt));
            }
        }
        for service in 0..world.services.len() {
            if world.plan.has_discovery {
                world.services[service].discover(false);
            }
            world.register_engines(service);
        }
        world
    }

    /// Executes one step of the plan, then checks every service.
    pub(crate) fn execute(&mut self, number: u64, action: &Action) -> Result<(), String> {
        for (at, service) in self.services.iter().enumerate() {
            service.seed(Random::new(self.plan.seed ^ (number << 8) ^ at as u64).next());
        }
        if self.is_verbose {
            println!("{number:>4} at {:>6} ms: {action:?}", self.time.elapsed_ms());
        }
        let settled = self.act(action)?;
        self.run_store(number);
        for service in 0..self.services.len() {
            self.check(service, settled == IdleServices::Service(service) || settled == IdleServices::All)?;
            if self.is_verbose {
                self.print_state(service);
            }
        }
        (0..self.services.len()).try_for_each(|service| self.check_shared(service))
    }

    /// The link of a service to an engine.
    fn link(&self, service: usize, engine: usize) -> MappedMutexGuard<'_, Link> {
        MutexGuard::map(self.services[service].links.lock(), |links| &mut links[engine])
    }

    fn act(&mut self, action: &Action) -> Result<IdleServices, String> {
        match *action {
            Action::Serve { engine, rank, prompt } => self.publish_by(engine, |engine| engine.serve(rank, prompt)),
            Action::Burst { engine, prompts } => {
                for _ in 0..prompts {
                    let (rank, prompt) = (self.random.next() as usize, self.random.within(0..1_000));
                    self.publish_by(engine, |engine| engine.serve(rank % engine.spec.dp_ranks.len(), prompt));
                }
            }
            Action::Remove { engine, rank, prompt, depth } => {
                self.publish_by(engine, |engine| engine.remove(rank, prompt, depth));
            }
            Action::RemoveFollowed { engine, choice } => {
                self.publish_by(engine, |engine| engine.remove_followed(choice));
            }
            Action::Clear { engine, rank } => self.publish_by(engine, |engine| engine.clear(rank)),
            Action::Odd { engine, rank, prompt, oddity } => {
                self.publish_by(engine, |engine| engine.publish_odd(rank, prompt, oddity));
            }
            Action::RestartEngine { engine, kept } => self.restart_engine(engine, kept),
            Action::Deliver { service, engine, count } => self.link(service, engine).deliver(count),
            Action::Lose { service, engine, count, is_newest } => self.link(service, engine).lose(count, is_newest),
            Action::Duplicate { service, engine } => self.link(service, engine).duplicate(),
            Action::Corrupt { service, engine } => self.link(service, engine).damage(Transit::Corrupt),
            Action::PanicDecoder { service, engine, is_whole_thread } => {
                let transit = if is_whole_thread { Transit::PanicDecoder } else { Transit::PanicListener };
                self.link(service, engine).damage(transit);
            }
            Action::Disconnect { service, engine, kept } => self.link(service, engine).disconnect(kept),
            Action::Connect { service, engine } => self.link(service, engine).connect(),
            Action::Answer { service, engine, kind, cut } => self.answer(service, engine, kind, cut),
            Action::DeliverReply { service, engine, count } => self.link(service, engine).deliver_reply(count),
            Action::Run { service, steps } => self.services[service].run(steps),
            Action::Settle { service } => {
                self.services[service].settle()?;
                return Ok(IdleServices::Service(service));
            }
            Action::Flow => {
                self.flow()?;
                return Ok(IdleServices::All);
            }
            Action::PassTime { ms } => self.pass(ms),
            Action::Silence { seconds } => {
                for _ in 0..seconds {
                    self.pass(1_000);
                    self.services.iter().try_for_each(Service::settle)?;
                    // Answers after the silence may be as of any moment of it.
                    for number in 0..self.services.len() {
                        let reports = reports(&self.services[number]);
                        self.record_positions(number, &reports);
                    }
                }
                return Ok(IdleServices::All);
            }
            Action::StepClock { ms } => self.time.step_system_ms(ms),
            Action::Unregister { service, engine, rank } => {
                self.services[service].unregister(&self.engines[engine].spec, rank)?;
            }
            Action::Register { service, engine } => self.services[service].register(engine, &self.engines[engine].spec),
            Action::RestartService { service, is_held } => self.restart_service(service, is_held),
            Action::ReadDump { service } => {
                if let [first, second] = self.services.as_mut_slice() {
                    match service {
                        0 => first.read_dump(second),
                        _ => second.read_dump(first),
                    }
                }
            }
            Action::Recover { service, is_cut } => self.services[service].recover(is_cut)?,
            Action::Store(fault) => {
                if let Some(sharing) = &self.sharing {
                    sharing.enter(|| sharing.store.suffer(fault));
                }
            }
            Action::Discovery(change) => self.change_discovery(change),
            Action::Repair(step) => self.repair(step)?,
            Action::Limits(step) => self.change_limits(step)?,
        }
        Ok(IdleServices::None)
    }

    /// Advances the time of all services, and of the tasks of the store.
    pub(crate) fn pass(&mut self, ms: u64) {
        let Some(sharing) = &self.sharing else {
            self.time.advance_ms(ms);
            return;
        };
        let mut left = ms;
        while left > 0 {
            let slice = left.min(SLICE_MS);
            sharing.wait_for(async { tokio::time::sleep(Duration::from_millis(slice)).await });
            self.synchronize();
            left -= slice;
        }
    }

    /// Runs the tasks of the store. The seed of the step decides how far.
    pub(crate) fn run_store(&mut self, number: u64) {
        if let Some(sharing) = &self.sharing {
            let mut random = Random::new(self.plan.seed ^ number.rotate_left(17));
            sharing.run_tasks(random.within(0..30));
        }
    }

    /// Sets the clock of the services to that of the store's tasks, which passes while a query waits.
    pub(crate) fn synchronize(&self) {
        if let Some(sharing) = &self.sharing {
            self.time.advance_ms(sharing.elapsed_ms().saturating_sub(self.time.elapsed_ms()));
        }
    }

    /// Stops publishing before a service ends, as a stopped service does; a killed service does not.
    pub(crate) fn stop_sharing(&self, number: usize) {
        if let Some(sharing) = &self.sharing {
            sharing.wait_for(self.services[number].indexer.stop_shared_store());
            self.synchronize();
        }
    }

    /// An engine acts, and sends what it publishes to each service.
    pub(crate) fn publish_by(&mut self, number: usize, act: impl FnOnce(&mut Engine)) {
        let engine = &mut self.engines[number];
        let before = engine.current().messages.len();
        act(engine);
        for sequence in before..engine.current().messages.len() {
            let sent = sent(engine, sequence as u64);
            self.coverage.messages += 1;
            for service in &self.services {
                service.links.lock()[number].publish(sent.clone());
            }
        }
    }

    /// An engine answers the open requests of a service.
    fn answer(&self, service: usize, engine: usize, kind: ReplyKind, cut: u64) {
        self.link(service, engine).answer(|from| self.reply(engine, from, kind, cut));
    }

    /// An engine's reply to a request of its messages starting at `from`.
    fn reply(&self, engine: usize, from: u64, kind: ReplyKind, cut: u64) -> Vec<Reply> {
        let engine = &self.engines[engine];
        let from = if kind == ReplyKind::FromStart { 0 } else { from };
        let mut messages: Vec<_> =
            engine.replayable(from).map(|sequence| Reply::Message(sent(engine, sequence))).collect();
        let cut_at = (cut % (messages.len() as u64 + 1)) as usize;
        let mut has_end = true;
        match kind {
            ReplyKind::Whole | ReplyKind::FromStart => {}
            ReplyKind::Empty => messages.clear(),
            ReplyKind::CutOff => {
                messages.truncate(cut_at);
                has_end = false;
            }
            ReplyKind::NoTail => messages.truncate(cut_at),
            ReplyKind::Gaps => {
                let mut kept = Random::new(cut);
                messages.retain(|_| !kept.one_in(3));
            }
            ReplyKind::Reversed => messages.reverse(),
            ReplyKind::Repeated => {
                messages = messages.iter().flat_map(|message| [message.clone(), message.clone()]).collect();
            }
            ReplyKind::Garbage => messages.insert(cut_at, Reply::Garbage),
        }
        messages.extend(has_end.then_some(Reply::End));
        messages
    }

    fn restart_service(&mut self, number: usize, is_held: bool) {
        let former = Arc::clone(&self.services[number].links);
        let links = links(&self.engines, |engine| former.lock()[engine].is_reachable);
        if self.sharing.is_some() && self.random.one_in(2) {
            self.stop_sharing(number);
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.restart(number);
        }
        let spec = &self.plan.services[number];
        let files = (self.sharing.as_ref(), self.limits.get(number));
        let mut restarted = start_service(number, spec, &self.time, files, links);
        restarted.ranks_max = self.services[number].ranks_max;
        restarted.seed(self.random.next());
        let is_held = is_held && self.services.len() > 1;
        if self.plan.has_discovery {
            restarted.discover(is_held);
        }
        self.services[number] = restarted;
        if self.plan.has_discovery || !is_held {
            self.register_engines(number);
        } else {
            self.engines_of(number).into_iter().for_each(|engine| {
                self.services[number].hold(engine, &self.engines[engine].spec);
            });
        }
    }

    /// Registers the engines of a service, or adds them to its discovery source.
    fn register_engines(&mut self, number: usize) {
        for engine in self.engines_of(number) {
            let (service, spec) = (&mut self.services[number], &self.engines[engine].spec);
            if self.plan.has_discovery { service.name(engine, spec) } else { service.register(engine, spec) }
        }
        if self.engines_of(number).is_empty() {
            self.services[number].discovery.iter_mut().for_each(ServiceDiscovery::report);
        }
    }

    fn restart_engine(&mut self, engine: usize, kept: usize) {
        for service in &mut self.services {
            service.links.lock()[engine].disconnect(kept);
            // Both copies of an instance that is rebuilt count the restart.
            service.engine_restarts += 1 + u64::from(service.repair.is_some());
        }
        self.engines[engine].restart();
    }

    fn change_discovery(&mut self, change: DiscoveryChange) {
        match change {
            DiscoveryChange::Name { service, engine } if self.engines_of(service).contains(&engine) => {
                self.services[service].name(engine, &self.engines[engine].spec);
            }
            DiscoveryChange::Name { .. } => {}
            DiscoveryChange::LeaveOut { service, engine } => {
                self.services[service].discovery.iter_mut().for_each(|discovery| discovery.leave_out(engine));
            }
            DiscoveryChange::Move { engine, restarts } => {
                let host = &mut self.engines[engine].spec.host;
                *host += 1;
                self.services.iter().for_each(|service| service.links.lock()[engine].move_to(*host));
                if restarts {
                    self.restart_engine(engine, 0);
                    self.services.iter().for_each(|service| service.links.lock()[engine].connect());
                }
            }
            DiscoveryChange::Fail { service } => {
                self.services[service].discovery.iter_mut().for_each(ServiceDiscovery::fail);
            }
        }
    }

    /// Delivers all messages on their way, answers every request, and runs all threads until none has work.
    pub(crate) fn flow(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            for service in 0..self.services.len() {
                for engine in 0..self.engines.len() {
                    self.answer(service, engine, ReplyKind::Whole, 0);
                    let mut link = self.link(service, engine);
                    link.deliver(usize::MAX);
                    link.deliver_reply(usize::MAX);
                }
                self.services[service].settle()?;
            }
            let is_busy = |service: &Service| service.links.lock().iter().any(Link::is_busy);
            if !self.services.iter().any(is_busy) {
                return Ok(());
            }
        }
        Err(format!("messages are still on their way after {ROUNDS_MAX} rounds"))
    }

    /// Numbers of the engines that a service is registered with at the start and at the end.
    fn engines_of(&self, number: usize) -> Vec<usize> {
        let is_of = |engine: &Engine| engine.spec.service.is_none_or(|service| service == number);
        (0..self.engines.len()).filter(|&engine| is_of(&self.engines[engine])).collect()
    }

    /// Ends every fault: connections are up, and every recovery is finished.
    fn end_faults(&mut self) -> Result<(), String> {
        if let Some(sharing) = &self.sharing {
            sharing.store.recover();
        }
        self.end_limits()?;
        for number in 0..self.services.len() {
            self.services[number].repair = None;
            self.services[number].links.lock().iter_mut().for_each(Link::connect);
            self.services[number].recover(false)?;
            self.register_engines(number);
        }
        Ok(())
    }

    /// Advances time without faults until a condition is met, for at most this time.
    fn recover_within(&mut self, seconds: u64, is_done: impl Fn(&Self) -> Result<(), String>) -> Result<(), String> {
        let mut outcome = Ok(());
        for _ in 0..seconds {
            self.flow()?;
            for service in 0..self.services.len() {
                self.check(service, true)?;
            }
            outcome = is_done(self);
            if outcome.is_ok() {
                return Ok(());
            }
            self.pass(1_000);
        }
        outcome.map_err(|missing| format!("after {seconds} s without faults: {missing}"))
    }

    /// Checks that the services recover after the faults, first from their own information, then by a clear of every cache.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        self.end_faults()?;
        // Messages on their way may exceed a small queue; the messages that each engine publishes later do not. A repair
        // that is retried later may return a message that makes a writer panic, and the messages after it are lost with it.
        for _ in 0..RETRIED_WITHIN_S {
            self.flow()?;
            self.pass(1_000);
        }
        let mut panics = self.panics();
        // A message that makes a service request one that panics in its index is lost with the index.
        for _ in 0..if self.plan.publishes_at_end { 1 + self.engines.len() } else { 0 } {
            panics = self.panics();
            for engine in 0..self.engines.len() {
                self.publish_by(engine, Engine::publish_filler);
                self.flow()?;
            }
            if self.panics() == panics {
                break;
            }
        }
        if self.is_verbose {
            println!("the faults have ended");
        }
        let has_published = self.plan.publishes_at_end;
        let healed = self.recover_within(HEALED_WITHIN_S, |world| world.check_healed(has_published, &panics));
        self.print_states();
        healed?;
        self.coverage.healed_ranks += self.must_be_exact().len() as u64;
        self.check_counters()?;
        self.check_sharing()?;
        self.check_clears()?;
        self.check_sharing()?;
        self.coverage.cleared_ranks += self.services.iter().map(|service| service.registered.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Prints the state of every service, if each step is printed.
    fn print_states(&self) {
        (0..self.services.len()).filter(|_| self.is_verbose).for_each(|service| self.print_state(service));
    }

    /// Checks that services answer about the ranks of each other.
    fn check_sharing(&mut self) -> Result<(), String> {
        if self.sharing.is_some() {
            self.recover_within(SHARED_WITHIN_S, Self::check_store_healed)?;
            self.coverage.healed_remote_ranks += self.shared_ranks().len() as u64;
        }
        Ok(())
    }

    /// Indexes that each service has replaced after a panic.
    fn panics(&self) -> Vec<u64> {
        self.services.iter().map(Service::panics).collect()
    }

    /// Checks that clears make every rank exact. A clear that makes a service request the message that panics in its index
    /// is lost with the index, and the next one is not: such a message is not requested twice from a stream.
    fn check_clears(&mut self) -> Result<(), String> {
        let streams = self.engines.len();
        for _ in 0..=streams {
            let panics = self.panics();
            for engine in 0..self.engines.len() {
                for rank in 0..self.engines[engine].spec.dp_ranks.len() {
                    self.publish_by(engine, |engine| engine.clear(rank));
                    self.publish_by(engine, |engine| engine.serve(rank, 0));
                }
                self.flow()?;
            }
            let cleared = self.recover_within(HEALED_WITHIN_S, Self::check_all_exact);
            self.print_states();
            let Err(missing) = cleared else { return Ok(()) };
            let has_panicked = |number: usize| self.services[number].panics() > panics[number];
            if self.inexact_after_clear().iter().any(|&(number, _)| !has_panicked(number)) {
                return Err(missing);
            }
        }
        Err(format!("{streams} streams caused more than {streams} panics in one index after the faults"))
    }
}

/// Time within which ranks recover after the faults have ended: a repair that was given up is retried after 30 s, and one
/// takes 12 s if its request was lost.
const HEALED_WITHIN_S: u64 = 120;

/// Time within which the shared store has all of the ranks after the faults have ended: entries that a node has lost
/// individually are written again after 20 s.
const SHARED_WITHIN_S: u64 = 60;

/// Time within which every repair is retried after the faults have ended.
const RETRIED_WITHIN_S: u64 = 90;

/// Services whose threads have no work left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleServices {
    None,
    Service(usize),
    All,
}

/// Starts a service, with the store that the services share, and with its limits file.
fn start_service(
    number: usize,
    spec: &ServiceSpec,
    time: &Arc<SimulatedTime>,
    (sharing, limits): (Option<&Sharing>, Option<&LimitsOfService>),
    links: Vec<Link>,
) -> Service {
    let tenant_limits = limits.map(LimitsOfService::content);
    let store = sharing.map(|sharing| sharing.options(number));
    let options = IndexerOptions { store, tenant_limits, ..IndexerOptions::default() };
    match sharing {
        Some(sharing) => sharing.enter(|| Service::start(spec, time, options, links)),
        None => Service::start(spec, time, options, links),
    }
}

/// Links of a service without listeners.
fn links(engines: &[Engine], is_reachable: impl Fn(usize) -> bool) -> Vec<Link> {
    engines.iter().enumerate().map(|(at, engine)| Link::new(is_reachable(at), engine.spec.host)).collect()
}

fn sent(engine: &Engine, sequence: u64) -> SentMessage {
    let payload = Arc::clone(&engine.current().messages[sequence as usize].payload);
    SentMessage { epoch: engine.epoch(), sequence, payload, transit: Transit::Intact }
}
