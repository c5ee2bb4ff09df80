//! Dumps of engines of hybrid models: a restored rank stays exact, in every cache group.

use flash_indexer_core::SequenceHash;
use flash_indexer_server::ServerOptions;
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_snapshot::{DumpEntry, DumpSink, RankName, RankRecord, Rejection, read_dump};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockRemoved, BlockStored, CacheGroup, EngineEvent, TokenIds};
use serde_json::{Value, json};

use crate::support::fake_peer::{FakeDump, FakePeer};
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, store, tokens};

const WINDOW: CacheGroup<'static> = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(8) };
const FULL: CacheGroup<'static> = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };
const SIX: [u64; 6] = [1, 2, 3, 4, 5, 6];

fn full<'a>(parent: Option<u64>, hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { group: FULL, ..store(parent, hashes) })
}

/// A store in the window's group, which skips blocks: its tokens do not identify them.
fn in_window<'a>(hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { group: WINDOW, token_ids: TokenIds::Plain(vec![7; 24]), ..store(None, hashes) })
}

fn removed_from<'a>(group: CacheGroup<'a>, hashes: &[u64]) -> EngineEvent<'a> {
    let block_hashes = hashes.iter().copied().map(SequenceHash).collect();
    EngineEvent::Removed(BlockRemoved { block_hashes, group_idx: group.idx, ..BlockRemoved::default() })
}

/// Engine 1 holds a prefix in both groups, the window of engine 2 is empty, and engine 3 has one group.
fn fleet(service: &Service) -> [Engine; 3] {
    let engines = [1, 2, 3].map(|instance| {
        let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
        Engine::with_replay(service, json!(instance), publisher)
    });
    engines[0].say(service, 0, &[in_window(&[3, 4, 5, 6]), full(None, &SIX)]);
    engines[1].say(service, 0, &[in_window(&[2]), full(None, &[1, 2]), removed_from(WINDOW, &[2])]);
    engines[2].say(service, 0, &[EngineEvent::Stored(store(None, &SIX))]);
    engines
}

/// Matched device blocks of each engine of the fleet for a prompt that continues after these blocks. Both services must agree.
fn ask(a: &Service, b: &Service, hashes: &[u64]) -> [u64; 3] {
    let prompt = [tokens(hashes), vec![5]].concat();
    let query = json!({ "token_ids": prompt, "model_name": "m" });
    let answer = a.query(&query);
    assert_eq!(answer, b.query(&query));
    ["1", "2", "3"].map(|instance| {
        assert_eq!(answer["instances"][instance]["trust"], json!("exact"), "{answer}");
        answer["scores"][instance]["0"].as_u64().expect("a score") / u64::from(BLOCK_TOKENS)
    })
}

fn digest(service: &Service, instance: u64) -> Value {
    let (status, digest) = service.get(&format!("/digest?model_name=m&instance_id={instance}"));
    assert_eq!(status, 200, "{digest}");
    digest
}

/// Checks that events after a takeover have the same effect on both services.
fn goes_on_exactly(a: &Service, b: &Service, engines: &[Engine; 3]) {
    for engine in engines {
        // After a file was read, a stream may still have to connect.
        engine.wait(b, "the engine's word", |listener| listener["trust"] == json!("exact"));
    }
    let [both, empty, _] = engines;
    assert_eq!(ask(a, b, &SIX), [6, 0, 6], "an empty window counts");
    assert_eq!(ask(a, b, &[1, 2, 3])[0], 0, "block 2 lies behind the window");
    both.say_to_both((a, b), 1, &[removed_from(WINDOW, &[6])]);
    assert_eq!(ask(a, b, &SIX), [5, 0, 6]);
    both.say_to_both((a, b), 2, &[removed_from(FULL, &[5])]);
    assert_eq!(ask(a, b, &SIX), [4, 0, 6]);
    both.say_to_both((a, b), 3, &[removed_from(WINDOW, &[4])]);
    empty.say_to_both((a, b), 1, &[in_window(&[1, 2])]);
    assert_eq!(ask(a, b, &SIX), [0, 2, 6]);
    for instance in [1, 2, 3] {
        assert_eq!(digest(a, instance), digest(b, instance));
    }
}

#[test]
fn a_hybrid_engine_is_taken_over_from_a_peer_in_the_middle_of_its_stream() {
    let survivor = Service::start();
    let engines = fleet(&survivor);
    let recovered = Service::from_peer(&survivor.url(""));
    goes_on_exactly(&survivor, &recovered, &engines);
    // Again, from a service that was itself recovered.
    let again = Service::from_peer(&recovered.url(""));
    for engine in &engines {
        engine.wait(&again, "the engine's word", |listener| listener["trust"] == json!("exact"));
    }
    assert_eq!(ask(&survivor, &again, &SIX), [0, 2, 6]);
    engines[0].say_to_both((&survivor, &again), 4, &[in_window(&[4])]);
    assert_eq!(ask(&survivor, &again, &SIX), [4, 2, 6]);
}

#[test]
fn a_hybrid_engine_is_taken_over_from_a_file_in_either_form() {
    for accept in ["application/json", "application/x-ndjson"] {
        let survivor = Service::start();
        let engines = fleet(&survivor);
        let request = ureq::get(survivor.url("/dump?hashes=string")).header("accept", accept);
        let dump = request.call().expect("an answer").body_mut().read_to_string().expect("text");
        let name = format!("flash-indexer-groups-{}-{}", std::process::id(), dump.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, dump).expect("a file");
        let loaded = Service::recovered(ServerOptions { load: Some(path.clone()), ..ServerOptions::default() });
        goes_on_exactly(&survivor, &loaded, &engines);
        std::fs::remove_file(path).expect("it is there");
    }
}

/// The dump as a writer without groups writes it. `group_events` is the number of omitted events about groups.
fn dump_without_groups(service: &Service, group_events: usize) -> FakeDump {
    let mut dump = service.get("/dump").1;
    let model = &mut dump["m:default"];
    let events = model["events"].as_array_mut().expect("events");
    let all = events.len();
    events.retain(|event| event["event"]["data"]["stored"]["blocks"] != json!([]));
    assert_eq!(events.len(), all - group_events, "names are in events that store nothing: {events:?}");
    for rank in model["ranks"].as_array_mut().expect("ranks") {
        assert!(rank.as_object_mut().expect("a rank").remove("groups").is_some());
    }
    FakeDump::Whole(dump.to_string().into_bytes())
}

#[test]
fn a_source_without_groups_is_not_believed_of_a_hybrid_engine() {
    let survivor = Service::start();
    let [both, _, plain] = fleet(&survivor);
    let dump = dump_without_groups(&survivor, 1);
    let peer = FakePeer::start(survivor.get("/workers").1, dump);
    let recovered = Service::from_peer(&peer.url);
    let trust = |engine: &Engine| recovered.listener(&engine.instance, 0)["trust"].clone();
    plain.say_to_both((&survivor, &recovered), 1, &[EngineEvent::Stored(store(Some(6), &[7]))]);
    assert_eq!(trust(&plain), json!("exact"), "it has one group");
    both.say_to_both((&survivor, &recovered), 1, &[full(Some(6), &[7]), in_window(&[7])]);
    assert_eq!(trust(&both), json!("degraded"));
    let why = recovered.listener(&both.instance, 0)["last_error"].to_string();
    assert!(why.contains("hybrid"), "{why}");
    both.say_to_both((&survivor, &recovered), 2, &[EngineEvent::Cleared]);
    assert_eq!(trust(&both), json!("exact"), "nothing is left of what was taken over");
}

/// A service that compares itself with its peers continuously, and recovers from none.
fn checking() -> Service {
    let peer_check_interval = Some(std::time::Duration::from_millis(50));
    Service::start_with(ServerOptions { peer_check_interval, ..ServerOptions::default() })
}

fn wait_for_metric(service: &Service, name: &str, outcome: &str) {
    let name = format!("flash_indexer_{name}_total");
    let counted = || service.metrics().value(&name, &[("outcome", outcome)]);
    wait_for(&format!("{name} {outcome}"), PATIENCE, || (counted() > 0.0).then_some(()));
}

/// An engine that cannot replay. One service receives its messages from the start, and the other from the second message on.
fn missed_by_one(whole: &Service, late: &Service) -> Engine {
    let engine = Engine::registered(whole, json!(1), 0, &json!({}));
    engine.say(whole, 0, &[in_window(&[3, 4, 5, 6]), full(None, &SIX)]);
    engine.register(late, &json!({}));
    engine.say(whole, 1, &[in_window(&[9]), removed_from(WINDOW, &[6])]);
    engine.wait(late, "a message without the one before it", |listener| listener["trust"] == json!("degraded"));
    engine
}

#[test]
fn what_one_replica_has_missed_of_a_hybrid_engine_it_takes_from_another() {
    let (whole, late) = (Service::start(), checking());
    let engine = missed_by_one(&whole, &late);
    assert_eq!(late.post("/register_peer", &json!({ "url": whole.url("") })).0, 201);
    engine.wait(&late, "the repair", |listener| listener["trust"] == json!("exact"));
    wait_for_metric(&late, "peer_repairs", "complete");
    let depth = |hashes: &[u64]| {
        let depths = [&whole, &late].map(|service| service.score(&[tokens(hashes), vec![5]].concat(), "1", 0));
        assert_eq!(depths[0], depths[1]);
        depths[0] / u64::from(BLOCK_TOKENS)
    };
    assert_eq!((depth(&SIX), depth(&[1, 2, 3])), (5, 0), "the window counts");
    // Removals name a group by the number of an earlier event.
    engine.say_to_both((&whole, &late), 2, &[removed_from(WINDOW, &[5])]);
    assert_eq!(depth(&SIX), 4);
    engine.say_to_both((&whole, &late), 3, &[in_window(&[5, 6]), removed_from(FULL, &[6])]);
    assert_eq!(depth(&SIX), 5);
    assert_eq!(digest(&whole, 1), digest(&late, 1));
    wait_for_metric(&late, "peer_checks", "equal");
}

#[test]
fn a_hybrid_engine_is_not_repaired_from_a_peer_that_tells_no_groups() {
    let (whole, late) = (Service::start(), checking());
    let engine = missed_by_one(&whole, &late);
    let peer = FakePeer::with_digest(whole.get("/workers").1, dump_without_groups(&whole, 1), &digest(&whole, 1));
    assert_eq!(late.post("/register_peer", &json!({ "url": peer.url })).0, 201);
    wait_for_metric(&late, "peer_repairs", "failed");
    assert_eq!(late.listener(&engine.instance, 0)["trust"], json!("degraded"));
}

#[test]
fn what_differs_in_a_window_alone_is_found() {
    let service = checking();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[in_window(&[3, 4, 5, 6]), full(None, &SIX)]);
    let mut other = digest(&service, 1);
    let window = json!({ "group": 0, "role": { "further": { "last_blocks": 2 } } });
    assert_eq!((&other["groups"][0]["role"], &other["groups"][1]["role"]), (&window["role"], &json!("indexed")));
    assert_eq!((&other["holds"]["blocks"], &other["groups"][0]["holds"]["blocks"]), (&json!(6), &json!(4)));
    other["groups"][0]["holds"]["digest"] = json!("0000000000000001");
    let peer = FakePeer::with_digest(service.get("/workers").1, FakeDump::Refuses, &other);
    assert_eq!(service.post("/register_peer", &json!({ "url": peer.url })).0, 201);
    wait_for_metric(&service, "peer_checks", "dispute");
}

struct Anything;

impl DumpSink for Anything {
    fn rank(&mut self, _: RankRecord) -> Result<(), Rejection> {
        Ok(())
    }

    fn entry(&mut self, _: RankName<'_>, _: DumpEntry) -> Result<(), Rejection> {
        Ok(())
    }
}

#[test]
fn damage_in_a_window_alone_is_noticed() {
    let service = Service::start();
    let _engines = fleet(&service);
    let request = ureq::get(service.url("/dump")).header("accept", "application/x-ndjson");
    let dump = request.call().expect("an answer").body_mut().read_to_string().expect("text");
    let read = |dump: &str| read_dump(dump.as_bytes(), &mut Anything);
    assert_eq!(read(&dump).expect("it is whole").holds.blocks, 6 + 2 + 6, "of the indexed groups");
    let names = dump.lines().find(|line| line.contains("\"needs\"")).expect("names in a window").to_owned();
    let cases = [
        dump.replace(&format!("{names}\n"), ""),
        dump.replace(&names, &names.replace("\"group\":0", "\"group\":5")),
        dump.replace(&names, &names.replace("\"blocks\":[],", "\"blocks\":[],\"copies\":2,")),
    ];
    for (number, damaged) in cases.iter().enumerate() {
        let error = read(damaged).expect_err("it is damaged").to_string();
        assert!(error.contains("cache group"), "case {number}: {error}");
    }
}

/// A store in the window's group with blocks of twice the registered size.
fn in_large_window<'a>(hashes: &[u64]) -> EngineEvent<'a> {
    let EngineEvent::Stored(window) = in_window(hashes) else { panic!("a store") };
    EngineEvent::Stored(BlockStored { block_size: 2 * BLOCK_TOKENS, ..window })
}

#[test]
fn the_block_size_of_a_window_is_in_every_dump() {
    let service = Service::start();
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let engine = Engine::with_replay(&service, json!(1), publisher);
    engine.say(&service, 0, &[in_large_window(&[4, 6]), full(None, &SIX)]);
    let depth = |service: &Service, hashes: &[u64]| {
        service.score(&[tokens(hashes), vec![5]].concat(), "1", 0) / u64::from(BLOCK_TOKENS)
    };
    assert_eq!((depth(&service, &SIX), depth(&service, &[1, 2, 3, 4, 5])), (6, 4));
    let group = &digest(&service, 1)["groups"][0];
    let shown = (&group["role"], &group["block_size"]);
    assert_eq!(shown, (&json!({ "further": { "last_blocks": 1 } }), &json!(2 * BLOCK_TOKENS)));

    let peer = Service::from_peer(&service.url(""));
    let of_files = ["application/json", "application/x-ndjson"].map(|accept| {
        let request = ureq::get(service.url("/dump?hashes=string")).header("accept", accept);
        let dump = request.call().expect("an answer").body_mut().read_to_string().expect("text");
        let sized = format!("\"block_size\":{},\"blocks\":[", 2 * BLOCK_TOKENS);
        assert!(dump.contains(&sized), "{dump}");
        for size in [0, 2 * BLOCK_TOKENS - 1] {
            let damaged = dump.replace(&sized, &format!("\"block_size\":{size},\"blocks\":["));
            let error = read_dump(damaged.as_bytes(), &mut Anything).expect_err("it is damaged").to_string();
            assert!(error.contains("neither a multiple nor a divisor of the registered 4"), "{error}");
        }
        let name = format!("flash-indexer-group-sizes-{}-{}", std::process::id(), dump.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, dump).expect("a file");
        let loaded = Service::recovered(ServerOptions { load: Some(path.clone()), ..ServerOptions::default() });
        std::fs::remove_file(path).expect("it is there");
        loaded
    });
    for restored in std::iter::once(&peer).chain(&of_files) {
        engine.wait(restored, "the stream", |listener| listener["trust"] == json!("exact"));
        assert_eq!((depth(restored, &SIX), depth(restored, &[1, 2, 3, 4, 5])), (6, 4));
        assert_eq!(digest(restored, 1), digest(&service, 1));
    }
    // Without the kind: the size of the group is decoder state.
    engine.say(&service, 1, &[removed_from(WINDOW, &[6])]);
    engine.say(&service, 2, &[in_window(&[2])]);
    for restored in std::iter::once(&peer).chain(&of_files) {
        engine.wait(restored, "the same messages", |listener| listener["last_seq"] == json!(2));
        assert_eq!(depth(restored, &SIX), 4);
        let listener = restored.listener(&json!(1), 0);
        assert_eq!(listener["rejected"], json!({ "partial_entry": 1 }), "the window has larger blocks");
    }
}

/// A store in the window's group with blocks of half the registered size. The first half of block *h* is 100 + *h*.
fn in_small_window<'a>(blocks: &[u64]) -> EngineEvent<'a> {
    let halves = blocks.iter().flat_map(|&block| [SequenceHash(100 + block), SequenceHash(block)]);
    let EngineEvent::Stored(window) = in_window(&[]) else { panic!("a store") };
    let token_ids = TokenIds::Plain(tokens(blocks));
    let small = BlockStored { block_hashes: halves.collect(), token_ids, block_size: BLOCK_TOKENS / 2, ..window };
    EngineEvent::Stored(small)
}

#[test]
fn the_links_of_smaller_blocks_are_in_every_dump() {
    let service = Service::start();
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let engine = Engine::with_replay(&service, json!(1), publisher);
    engine.say(&service, 0, &[in_small_window(&SIX), full(None, &SIX)]);
    let depth = |service: &Service| service.score(&[tokens(&SIX), vec![5]].concat(), "1", 0) / u64::from(BLOCK_TOKENS);
    let group = &digest(&service, 1)["groups"][0];
    let shown = (&group["role"], &group["block_size"], &group["holds"]["blocks"]);
    assert_eq!(shown, (&json!({ "further": { "last_blocks": 4 } }), &json!(BLOCK_TOKENS / 2), &json!(12)));

    let peer = Service::from_peer(&service.url(""));
    let of_files = ["application/json", "application/x-ndjson"].map(|accept| {
        let request = ureq::get(service.url("/dump?hashes=string")).header("accept", accept);
        let dump = request.call().expect("an answer").body_mut().read_to_string().expect("text");
        let link = r#"["106","5"]"#;
        assert!(dump.contains(link), "{dump}");
        let damaged = dump.replace(link, r#"["106","4"]"#);
        let error = read_dump(damaged.as_bytes(), &mut Anything).expect_err("it is damaged").to_string();
        assert!(error.contains("cache group 0"), "{error}");
        let name = format!("flash-indexer-group-links-{}-{}", std::process::id(), dump.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, dump).expect("a file");
        let loaded = Service::recovered(ServerOptions { load: Some(path.clone()), ..ServerOptions::default() });
        std::fs::remove_file(path).expect("it is there");
        loaded
    });
    let all = || [&service, &peer].into_iter().chain(&of_files);
    for restored in all() {
        engine.wait(restored, "the stream", |listener| listener["trust"] == json!("exact"));
        assert_eq!(depth(restored), 6);
        assert_eq!(digest(restored, 1), digest(&service, 1));
    }
    engine.say(&service, 1, &[removed_from(WINDOW, &[106])]);
    for restored in all() {
        engine.wait(restored, "the same message", |listener| listener["last_seq"] == json!(1));
        assert_eq!(depth(restored), 5, "the window needs both halves of two blocks");
    }
}
