//! What happens to a fleet, with real processes and sockets: afterwards a service says of every engine that it is
//! sure of what the service says that nothing has happened to, and shows of which it is not.

mod support;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_sim::{
    EngineOptions, Publisher, PublisherOptions, ReplayLoss, Request, SimulatedEngine, reusable_blocks,
};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::Encoding;
use serde_json::{Value, json};
use support::{PATIENCE, Serve};

const BLOCK_TOKENS: u32 = 4;
const CACHE_BLOCKS: usize = 3_000;
/// Tokens of a prompt that is answered at length, a batch for each block.
const PROMPT_TOKENS: usize = 64;
const ANSWER_TOKENS: usize = 4_000;
const CONVERSATIONS: u32 = 4;

/// Everything of a conversation with an engine, prompt and answer.
fn conversation(number: u32) -> Vec<u32> {
    (0..(PROMPT_TOKENS + ANSWER_TOKENS) as u32).map(|at| number * 10_000 + at).collect()
}

/// An engine that each of the two services reaches at sockets of its own, so that something can happen to the
/// connection of one and not to the other's.
struct Engine {
    instance: u64,
    simulated: SimulatedEngine,
    /// Every batch of its life.
    said: Vec<Vec<u8>>,
    to_survivor: Publisher,
    to_other: Publisher,
    options: PublisherOptions,
}

/// Whom a batch reaches; the engine can replay it to everybody.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reaches {
    Both,
    Survivor,
    Nobody,
}

fn simulated(life: u32) -> SimulatedEngine {
    SimulatedEngine::new(EngineOptions {
        block_size: BlockSize::new(BLOCK_TOKENS).expect("four"),
        blocks: CACHE_BLOCKS,
        dp_rank: DpRank(0),
        hash_seed: life.to_string(),
        encoding: Encoding::Map,
    })
}

fn bind(options: &PublisherOptions) -> Publisher {
    Publisher::bind(options.clone()).expect("the ports are free")
}

/// Closes a publisher and opens another one where it was.
fn bind_again(publisher: &mut Publisher, options: &PublisherOptions) {
    let options = PublisherOptions {
        endpoint: publisher.endpoint().to_owned(),
        replay_endpoint: publisher.replay_endpoint().to_owned(),
        ..options.clone()
    };
    *publisher = bind(&PublisherOptions::on_loopback());
    *publisher = bind(&options);
}

impl Engine {
    fn last(&self) -> u64 {
        self.said.len() as u64 - 1
    }

    fn serve(&mut self, request: &Request, reaches: Reaches) -> usize {
        let served = self.simulated.serve(request, self.said.len() as f64).expect("it fits");
        for batch in served.batches {
            let say = |publisher: &Publisher, is_heard: bool| match is_heard {
                true => publisher.publish(batch.sequence, &batch.payload).expect("published"),
                false => publisher.keep(batch.sequence, &batch.payload),
            };
            say(&self.to_survivor, reaches != Reaches::Nobody);
            say(&self.to_other, reaches == Reaches::Both);
            self.said.push(batch.payload);
        }
        served.cached_tokens
    }

    /// Has a conversation of so many tokens.
    fn converse(&mut self, number: u32, tokens: usize, reaches: Reaches) {
        let mut prompt = conversation(number);
        prompt.truncate(tokens);
        let output = prompt.split_off(PROMPT_TOKENS.min(tokens));
        self.serve(&Request { at_ms: 0, prompt, output }, reaches);
    }

    /// The engine process ends and another one starts.
    fn start_again(&mut self) {
        self.simulated = simulated(1_000 + self.instance as u32);
        self.said.clear();
        bind_again(&mut self.to_survivor, &self.options);
        bind_again(&mut self.to_other, &self.options);
    }

    /// The connection to the other service ends, and its engine goes on.
    fn reset_connection(&mut self) {
        bind_again(&mut self.to_other, &self.options);
        self.said.iter().enumerate().for_each(|(sequence, payload)| self.to_other.keep(sequence as u64, payload));
    }
}

/// What the other service can have of an engine.
#[derive(Clone, Copy)]
struct Way {
    replays: bool,
    replay_loss: ReplayLoss,
    unsent_batches_max: u32,
}

const REPLAYS: Way = Way { replays: true, replay_loss: ReplayLoss::None, unsent_batches_max: 100_000 };
const REPLAYS_AND_LOSES: Way = Way { replay_loss: ReplayLoss::EverySecondAfter(1_000), ..REPLAYS };
const CANNOT_REPLAY: Way = Way { replays: false, ..REPLAYS };
/// Batches that an engine with a short queue keeps for a service that does not take them.
const SHORT: u32 = 200;

/// Two services and four engines.
struct Fleet {
    survivor: Serve,
    other: Serve,
    engines: Vec<Engine>,
}

impl Fleet {
    fn start(ways: [Way; 4]) -> Self {
        let (survivor, other) = (Serve::start(&[]), Serve::start(&[]));
        let engines = ways.into_iter().zip(1..).map(|(way, instance)| {
            let Way { replays, replay_loss, unsent_batches_max } = way;
            let buffer_batches = if replays { 50_000 } else { 0 };
            let whole = PublisherOptions { buffer_batches, ..PublisherOptions::on_loopback() };
            let options = PublisherOptions { replay_loss, unsent_batches_max, ..whole.clone() };
            let (to_survivor, to_other) = (bind(&whole), bind(&options));
            for (serve, publisher) in [(&survivor, &to_survivor), (&other, &to_other)] {
                let replay_endpoint = replays.then(|| publisher.replay_endpoint());
                let (status, answer) = serve.post(
                    "/register",
                    &json!({
                        "instance_id": instance, "endpoint": publisher.endpoint(), "replay_endpoint": replay_endpoint,
                        "model_name": "m", "block_size": BLOCK_TOKENS,
                    }),
                );
                assert_eq!(status, 201, "{answer}");
                assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "nobody listens");
            }
            Engine { instance, simulated: simulated(instance as u32), said: Vec::new(), to_survivor, to_other, options }
        });
        let mut fleet = Self { engines: engines.collect(), survivor, other };
        fleet.engines.iter_mut().for_each(|engine| engine.converse(0, 400, Reaches::Both));
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

    /// Waits until both have heard everything that there is, and the other service trusts the engines so.
    fn wait(&self, trusts: [&str; 4]) {
        for (engine, trust) in self.engines.iter().zip(trusts) {
            for (serve, trust) in [(&self.survivor, "exact"), (&self.other, trust)] {
                wait_for(&format!("engine {} in {}, {trust}", engine.instance, serve.url), PATIENCE, || {
                    let listener = Self::listener(serve, engine);
                    let is_so = listener["last_seq"] == json!(engine.last()) && listener["trust"] == json!(trust);
                    is_so.then_some(())
                });
            }
        }
    }

    /// Asks both the fixed set: what the other service is sure of is what the survivor says, and what engines really
    /// have. How many tokens were found of each engine in all.
    fn compare(&mut self, trusts: [&str; 4]) -> [u64; 4] {
        let mut found = [0; 4];
        for number in 0..2 * CONVERSATIONS {
            for tokens in [3, PROMPT_TOKENS, 333, 1_000, PROMPT_TOKENS + ANSWER_TOKENS] {
                let prompt = [&conversation(number)[..tokens], &[1]].concat();
                let query = json!({ "model_name": "m", "token_ids": prompt });
                let [survivor, other] = [&self.survivor, &self.other].map(|serve| serve.post("/query", &query).1);
                for (at, trust) in trusts.into_iter().enumerate() {
                    let instance = (at + 1).to_string();
                    assert_eq!(survivor["instances"][&instance]["trust"], json!("exact"), "{survivor}");
                    assert_eq!(other["instances"][&instance]["trust"], json!(trust), "{other}");
                    if trust == "exact" {
                        for part in ["instances", "scores", "tree_sizes"] {
                            assert_eq!(other[part][&instance], survivor[part][&instance], "{tokens} of {number}");
                        }
                    }
                    found[at] += other["scores"][&instance]["0"].as_u64().expect("a score");
                }
            }
        }
        self.compare_with_engines();
        found
    }

    /// What each engine has of a prompt is what the survivor says. Changes the engines' caches.
    fn compare_with_engines(&mut self) {
        for engine in &mut self.engines {
            let prompt = [&conversation(0)[..1_001], &[1]].concat();
            let answer = self.survivor.post("/query", &json!({ "model_name": "m", "token_ids": prompt })).1;
            let predicted = answer["scores"][engine.instance.to_string()]["0"].as_u64().expect("a score");
            let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
            let most = (reusable_blocks(prompt.len(), block_size) * BLOCK_TOKENS as usize) as u64;
            let cached = engine.serve(&Request { at_ms: 0, prompt, output: Vec::new() }, Reaches::Nobody);
            assert_eq!(predicted.min(most), cached as u64, "engine {}", engine.instance);
        }
    }
}

#[test]
fn an_engine_that_starts_again_is_known_from_its_new_beginning() {
    let mut fleet = Fleet::start([REPLAYS, REPLAYS, CANNOT_REPLAY, CANNOT_REPLAY]);
    for engine in &mut fleet.engines {
        (0..CONVERSATIONS).for_each(|number| engine.converse(number, 1_000, Reaches::Both));
    }
    fleet.wait(["exact"; 4]);
    // This one says much before anybody is connected again.
    fleet.engines[0].start_again();
    fleet.engines[0].converse(CONVERSATIONS, 2_000, Reaches::Nobody);
    // Of this one a service does not see that it went.
    fleet.other.signal("-STOP");
    fleet.engines[1].start_again();
    (0..3).for_each(|_| fleet.engines[1].converse(CONVERSATIONS + 1, 1_500, Reaches::Nobody));
    fleet.other.signal("-CONT");
    // This one cannot say anything again, and is heard from its first word on.
    let engine = &mut fleet.engines[2];
    engine.start_again();
    for publisher in [&engine.to_survivor, &engine.to_other] {
        assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "nobody came back");
    }
    engine.converse(CONVERSATIONS + 2, 1_500, Reaches::Both);
    fleet.engines[3].converse(CONVERSATIONS + 3, 1_500, Reaches::Both);
    fleet.wait(["exact"; 4]);
    let found = fleet.compare(["exact"; 4]);
    assert!(found[..3].iter().all(|&tokens| 0 < tokens && tokens < found[3]), "new lives know little: {found:?}");
}

/// A service that stands still for longer than 30 s loses two things. Its engines' queues for it fill up, and what
/// does not fit is dropped; and an engine that has heard nothing for the 15 s that the service's heartbeats promise
/// takes the connection for dead, and closes it with all that it still had for it. Here the queues are short and the
/// connection is closed while the service is stopped, so that both have happened when it goes on, however short
/// the pause was.
#[test]
fn a_service_that_stood_still_catches_up() {
    let short = |way| Way { unsent_batches_max: SHORT, ..way };
    let mut fleet = Fleet::start([REPLAYS, short(REPLAYS), short(CANNOT_REPLAY), CANNOT_REPLAY]);
    fleet.other.signal("-STOP");
    fleet.engines[0].converse(1, 2_000, Reaches::Both);
    fleet.engines[0].reset_connection();
    // Long prompts that push each other out of the cache: some 40 kB in a batch, more than sockets buffer.
    for engine in &mut fleet.engines[1..3] {
        for number in 0..3 * SHORT {
            let prompt = (0..2_000).map(|at| 1_000_000 + number * 2_000 + at).collect();
            engine.serve(&Request { at_ms: 0, prompt, output: Vec::new() }, Reaches::Both);
        }
        engine.converse(1, 1_000, Reaches::Both);
    }
    fleet.engines[3].converse(1, 400, Reaches::Both);
    fleet.other.signal("-CONT");
    // The gap shows with the first message that comes through once the queue has room again.
    for engine in &mut fleet.engines[1..3] {
        let mut seen = Value::Null;
        wait_for("a message behind the gap", PATIENCE, || {
            let listener = Fleet::listener(&fleet.other, engine);
            let last = listener["last_seq"].clone();
            if last == json!(engine.last()) {
                assert_ne!(listener["gaps"], json!(0), "nothing was dropped: {listener}");
                return Some(());
            }
            if last == seen {
                engine.converse(2, PROMPT_TOKENS + 8, Reaches::Both);
            }
            seen = last;
            None
        });
    }
    let trusts = ["exact", "exact", "degraded", "exact"];
    fleet.wait(trusts);
    let found = fleet.compare(trusts);
    assert!([0, 1, 3].iter().all(|&at| found[at] > 0), "there is something to find: {found:?}");
}

#[test]
fn ten_thousand_lost_messages_come_back_or_are_shown() {
    let mut fleet = Fleet::start([REPLAYS, REPLAYS_AND_LOSES, CANNOT_REPLAY, CANNOT_REPLAY]);
    for engine in &mut fleet.engines[..3] {
        let before = engine.said.len();
        let mut numbers = (0..CONVERSATIONS).cycle();
        while engine.said.len() < before + 10_000 {
            let number = numbers.next().expect("it goes round");
            engine.converse(number, PROMPT_TOKENS + ANSWER_TOKENS, Reaches::Survivor);
        }
    }
    for engine in &mut fleet.engines {
        engine.converse(5, 800, Reaches::Both);
    }
    let trusts = ["exact", "exact", "degraded", "exact"];
    fleet.wait(trusts);
    let listener = Fleet::listener(&fleet.other, &fleet.engines[2]);
    assert!(listener["last_error"].as_str().is_some_and(|why| why.contains("were lost")), "{listener}");
    let found = fleet.compare(trusts);
    assert!(found.iter().all(|&tokens| tokens > 0), "what came after the loss counts: {found:?}");
    assert!(found[2] < found[0], "most of what could be is forgotten: {found:?}");
}
