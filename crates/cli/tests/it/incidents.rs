//! Incidents in a fleet of real processes and sockets. A disturbed service gives the same answers for every `exact` engine as an
//! undisturbed service, and shows which engines are not `exact`.

use std::time::Duration;

use crate::support::{PATIENCE, Serve};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_sim::{
    EngineOptions, Publisher, PublisherOptions, ReplayLoss, Request, SimulatedEngine, reusable_blocks,
};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::Encoding;
use serde_json::{Value, json};

const BLOCK_TOKENS: u32 = 4;
const CACHE_BLOCKS: usize = 3_000;
/// Tokens of a prompt with a long answer, which is a batch for each block.
const PROMPT_TOKENS: usize = 64;
const ANSWER_TOKENS: usize = 4_000;
const CONVERSATIONS: u32 = 4;

/// Prompt and answer of a conversation.
fn conversation(number: u32) -> Vec<u32> {
    (0..(PROMPT_TOKENS + ANSWER_TOKENS) as u32).map(|at| number * 10_000 + at).collect()
}

/// An engine with separate sockets for each of the two services, so a test can disturb only one connection.
struct Engine {
    instance: u64,
    simulated: SimulatedEngine,
    /// Every batch of its epoch.
    batches: Vec<Vec<u8>>,
    to_undisturbed: Publisher,
    to_disturbed: Publisher,
    options: PublisherOptions,
}

/// The services that receive a batch live; the engine can replay it to both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receivers {
    Both,
    Undisturbed,
    None,
}

fn simulated(epoch: u32) -> SimulatedEngine {
    SimulatedEngine::new(EngineOptions {
        block_size: BlockSize::new(BLOCK_TOKENS).expect("four"),
        blocks: CACHE_BLOCKS,
        dp_rank: DpRank(0),
        hash_seed: epoch.to_string(),
        encoding: Encoding::Map,
    })
}

fn bind(options: &PublisherOptions) -> Publisher {
    Publisher::bind(options.clone()).expect("the ports are free")
}

/// Closes a publisher. Returns the options to bind another one at its address.
fn close(publisher: &mut Publisher, options: &PublisherOptions) -> PublisherOptions {
    let (endpoint, replay_endpoint) = (publisher.endpoint().to_owned(), publisher.replay_endpoint().to_owned());
    // Nothing connects to these ports.
    *publisher = bind(&PublisherOptions::on_loopback());
    PublisherOptions { endpoint, replay_endpoint, ..options.clone() }
}

impl Engine {
    fn last(&self) -> u64 {
        self.batches.len() as u64 - 1
    }

    fn serve(&mut self, request: &Request, receivers: Receivers) -> usize {
        let served = self.simulated.serve(request, self.batches.len() as f64).expect("it fits");
        for batch in served.batches {
            let send = |publisher: &Publisher, is_live: bool| match is_live {
                true => publisher.publish(batch.sequence, &batch.payload).expect("published"),
                false => publisher.keep(batch.sequence, &batch.payload),
            };
            send(&self.to_undisturbed, receivers != Receivers::None);
            send(&self.to_disturbed, receivers == Receivers::Both);
            self.batches.push(batch.payload);
        }
        served.cached_tokens
    }

    /// Serves a conversation, cut to `tokens`.
    fn converse(&mut self, number: u32, tokens: usize, receivers: Receivers) {
        let mut prompt = conversation(number);
        prompt.truncate(tokens);
        let output = prompt.split_off(PROMPT_TOKENS.min(tokens));
        self.serve(&Request { at_ms: 0, prompt, output }, receivers);
    }

    /// Restarts the engine with an empty cache. It serves `before` before a service can connect to it.
    fn restart(&mut self, before: impl FnOnce(&mut Self)) {
        self.simulated = simulated(1_000 + self.instance as u32);
        self.batches.clear();
        let undisturbed = close(&mut self.to_undisturbed, &self.options);
        let disturbed = close(&mut self.to_disturbed, &self.options);
        before(self);
        self.to_undisturbed = self.publisher(undisturbed);
        self.to_disturbed = self.publisher(disturbed);
    }

    /// Closes the connection to the disturbed service; the engine continues.
    fn reset_connection(&mut self) {
        let disturbed = close(&mut self.to_disturbed, &self.options);
        self.to_disturbed = self.publisher(disturbed);
    }

    /// A publisher that can replay every batch of the epoch.
    fn publisher(&self, options: PublisherOptions) -> Publisher {
        let options = PublisherOptions { history: (0..).zip(self.batches.iter().cloned()).collect(), ..options };
        // Another process of the machine may have taken a port of the engine for a connection meanwhile.
        wait_for(&format!("engine {}: its ports are free", self.instance), PATIENCE, || {
            Publisher::bind(options.clone()).ok()
        })
    }
}

/// Properties of the connection between an engine and the disturbed service.
#[derive(Clone, Copy)]
struct Link {
    replays: bool,
    replay_loss: ReplayLoss,
    unsent_batches_max: u32,
}

const REPLAYS: Link = Link { replays: true, replay_loss: ReplayLoss::None, unsent_batches_max: 100_000 };
const REPLAYS_AND_LOSES: Link = Link { replay_loss: ReplayLoss::EverySecondAfter(1_000), ..REPLAYS };
const CANNOT_REPLAY: Link = Link { replays: false, ..REPLAYS };
/// Batches that an engine with a short queue keeps for a service that does not receive them.
const SHORT_QUEUE_BATCHES: u32 = 200;
/// Long enough for the service to detect that it was suspended.
const PAUSE: Duration = Duration::from_secs(3);
/// Somewhat longer than the time after a pause in which received messages may have waited.
const BACKLOG: Duration = Duration::from_secs(21);

/// Two services and four engines.
struct Fleet {
    undisturbed: Serve,
    disturbed: Serve,
    engines: Vec<Engine>,
}

impl Fleet {
    fn start(links: [Link; 4]) -> Self {
        let (undisturbed, disturbed) = (Serve::start(&[]), Serve::start(&[]));
        let engines = links.into_iter().zip(1..).map(|(link, instance)| {
            let Link { replays, replay_loss, unsent_batches_max } = link;
            let buffer_batches = if replays { 50_000 } else { 0 };
            let whole = PublisherOptions { buffer_batches, ..PublisherOptions::on_loopback() };
            let options = PublisherOptions { replay_loss, unsent_batches_max, ..whole.clone() };
            let (to_undisturbed, to_disturbed) = (bind(&whole), bind(&options));
            for (serve, publisher) in [(&undisturbed, &to_undisturbed), (&disturbed, &to_disturbed)] {
                let replay_endpoint = replays.then(|| publisher.replay_endpoint());
                let (status, answer) = serve.post(
                    "/register",
                    &json!({
                        "instance_id": instance, "endpoint": publisher.endpoint(), "replay_endpoint": replay_endpoint,
                        "model_name": "m", "block_size": BLOCK_TOKENS,
                    }),
                );
                assert_eq!(status, 201, "{answer}");
                assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "the service does not subscribe");
            }
            Engine {
                instance,
                simulated: simulated(instance as u32),
                batches: Vec::new(),
                to_undisturbed,
                to_disturbed,
                options,
            }
        });
        let mut fleet = Self { engines: engines.collect(), undisturbed, disturbed };
        fleet.engines.iter_mut().for_each(|engine| engine.converse(0, 400, Receivers::Both));
        fleet.wait(["exact"; 4]);
        fleet
    }

    /// An engine's listener in a service.
    fn listener(serve: &Serve, engine: &Engine) -> Value {
        let (_, workers) = serve.get("/workers");
        let mut workers = workers.as_array().expect("a list").iter();
        let worker = workers.find(|worker| worker["instance_id"] == json!(engine.instance));
        worker.expect("it is registered")["listeners"]["0"].clone()
    }

    /// Waits until both services have applied all messages and the disturbed one has these trust states.
    fn wait(&self, trusts: [&str; 4]) {
        for (engine, trust) in self.engines.iter().zip(trusts) {
            for (serve, trust) in [(&self.undisturbed, "exact"), (&self.disturbed, trust)] {
                wait_for(&format!("engine {} in {}, {trust}", engine.instance, serve.url), PATIENCE, || {
                    let listener = Self::listener(serve, engine);
                    let is_so = listener["last_seq"] == json!(engine.last()) && listener["trust"] == json!(trust);
                    is_so.then_some(())
                });
            }
        }
    }

    /// Sends both services the same queries and compares: the disturbed service's answers about `exact` engines equal the
    /// other's, and the engines' caches. Returns the matched tokens of each engine.
    fn compare(&mut self, trusts: [&str; 4]) -> [u64; 4] {
        let mut found = [0; 4];
        for number in 0..2 * CONVERSATIONS {
            for tokens in [3, PROMPT_TOKENS, 333, 1_000, PROMPT_TOKENS + ANSWER_TOKENS] {
                let prompt = [&conversation(number)[..tokens], &[1]].concat();
                let query = json!({ "model_name": "m", "token_ids": prompt });
                let [undisturbed, disturbed] =
                    [&self.undisturbed, &self.disturbed].map(|serve| serve.post("/query", &query).1);
                for (at, trust) in trusts.into_iter().enumerate() {
                    let instance = (at + 1).to_string();
                    assert_eq!(undisturbed["instances"][&instance]["trust"], json!("exact"), "{undisturbed}");
                    assert_eq!(disturbed["instances"][&instance]["trust"], json!(trust), "{disturbed}");
                    if trust == "exact" {
                        for part in ["instances", "scores", "tree_sizes"] {
                            assert_eq!(
                                disturbed[part][&instance], undisturbed[part][&instance],
                                "{tokens} of {number}"
                            );
                        }
                    }
                    found[at] += disturbed["scores"][&instance]["0"].as_u64().expect("a score");
                }
            }
        }
        self.compare_with_engines();
        found
    }

    /// Compares the undisturbed service's answers with each engine's cache. Changes the caches.
    fn compare_with_engines(&mut self) {
        for engine in &mut self.engines {
            let prompt = [&conversation(0)[..1_001], &[1]].concat();
            let answer = self.undisturbed.post("/query", &json!({ "model_name": "m", "token_ids": prompt })).1;
            let predicted = answer["scores"][engine.instance.to_string()]["0"].as_u64().expect("a score");
            let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
            let most = (reusable_blocks(prompt.len(), block_size) * BLOCK_TOKENS as usize) as u64;
            let cached = engine.serve(&Request { at_ms: 0, prompt, output: Vec::new() }, Receivers::None);
            assert_eq!(predicted.min(most), cached as u64, "engine {}", engine.instance);
        }
    }
}

#[test]
fn a_restarted_engine_is_indexed_from_its_first_message() {
    let mut fleet = Fleet::start([REPLAYS, REPLAYS, CANNOT_REPLAY, CANNOT_REPLAY]);
    for engine in &mut fleet.engines {
        (0..CONVERSATIONS).for_each(|number| engine.converse(number, 1_000, Receivers::Both));
    }
    fleet.wait(["exact"; 4]);
    // This engine stores blocks before a service is connected again.
    fleet.engines[0].restart(|engine| engine.converse(CONVERSATIONS, 2_000, Receivers::None));
    // One service is stopped while this engine restarts.
    fleet.disturbed.signal("-STOP");
    fleet.engines[1].restart(|engine| (0..3).for_each(|_| engine.converse(CONVERSATIONS + 1, 1_500, Receivers::None)));
    fleet.disturbed.signal("-CONT");
    // This engine cannot replay, and its first message is received live.
    let engine = &mut fleet.engines[2];
    engine.restart(|_| ());
    for publisher in [&engine.to_undisturbed, &engine.to_disturbed] {
        assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "the service does not subscribe again");
    }
    engine.converse(CONVERSATIONS + 2, 1_500, Receivers::Both);
    fleet.engines[3].converse(CONVERSATIONS + 3, 1_500, Receivers::Both);
    fleet.wait(["exact"; 4]);
    let found = fleet.compare(["exact"; 4]);
    assert!(found[..3].iter().all(|&tokens| 0 < tokens && tokens < found[3]), "new epochs have few blocks: {found:?}");
}

/// A service that is stopped for more than 30 s loses messages in two ways. Its engines' queues for it overflow. And an
/// engine that receives no heartbeat for 15 s closes the connection and drops its queue. Here the queues are short and
/// the connection is closed while the service is stopped, so both happen during a pause of any length.
#[test]
fn a_stopped_service_catches_up() {
    let short = |link| Link { unsent_batches_max: SHORT_QUEUE_BATCHES, ..link };
    let mut fleet = Fleet::start([REPLAYS, short(REPLAYS), short(CANNOT_REPLAY), CANNOT_REPLAY]);
    fleet.disturbed.signal("-STOP");
    fleet.engines[0].converse(1, 2_000, Receivers::Both);
    fleet.engines[0].reset_connection();
    // Long prompts that evict each other from the cache: about 40 kB in a batch, more than sockets buffer.
    for engine in &mut fleet.engines[1..3] {
        for number in 0..3 * SHORT_QUEUE_BATCHES {
            let prompt = (0..2_000).map(|at| 1_000_000 + number * 2_000 + at).collect();
            engine.serve(&Request { at_ms: 0, prompt, output: Vec::new() }, Receivers::Both);
        }
        engine.converse(1, 1_000, Receivers::Both);
    }
    fleet.engines[3].converse(1, 400, Receivers::Both);
    std::thread::sleep(PAUSE);
    fleet.disturbed.signal("-CONT");
    // The first message after the queue has room again shows the gap.
    for engine in &mut fleet.engines[1..3] {
        let mut seen = Value::Null;
        wait_for("a message after the gap", PATIENCE, || {
            let listener = Fleet::listener(&fleet.disturbed, engine);
            let last = listener["last_seq"].clone();
            // A replay may return the dropped messages first; the next message shows the gap all the same.
            if last == json!(engine.last()) && last == listener["received_seq"] {
                assert_ne!(listener["gaps"], json!(0), "nothing was dropped: {listener}");
                return Some(());
            }
            if last == seen {
                engine.converse(2, PROMPT_TOKENS + 8, Receivers::Both);
            }
            seen = last;
            None
        });
    }
    // Queued messages do not show whether the last engine has dropped messages after them.
    fleet.wait(["exact", "exact", "degraded", "degraded"]);
    std::thread::sleep(BACKLOG);
    fleet.engines[3].converse(2, 400, Receivers::Both);
    let trusts = ["exact", "exact", "degraded", "exact"];
    fleet.wait(trusts);
    let found = fleet.compare(trusts);
    assert!([0, 1, 3].iter().all(|&at| found[at] > 0), "the queries match: {found:?}");
}

#[test]
fn ten_thousand_lost_messages_are_replayed_or_reported() {
    let mut fleet = Fleet::start([REPLAYS, REPLAYS_AND_LOSES, CANNOT_REPLAY, CANNOT_REPLAY]);
    for engine in &mut fleet.engines[..3] {
        let before = engine.batches.len();
        let mut numbers = (0..CONVERSATIONS).cycle();
        while engine.batches.len() < before + 10_000 {
            let number = numbers.next().expect("it goes round");
            engine.converse(number, PROMPT_TOKENS + ANSWER_TOKENS, Receivers::Undisturbed);
        }
    }
    for engine in &mut fleet.engines {
        engine.converse(5, 800, Receivers::Both);
    }
    let trusts = ["exact", "exact", "degraded", "exact"];
    fleet.wait(trusts);
    let listener = Fleet::listener(&fleet.disturbed, &fleet.engines[2]);
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("were lost")), "{listener}");
    let found = fleet.compare(trusts);
    assert!(found.iter().all(|&tokens| tokens > 0), "blocks stored after the loss count: {found:?}");
    assert!(found[2] < found[0], "blocks stored before the loss do not count: {found:?}");
}
