//! Dumps of engines that offload: a restored rank has the contents of dropped blocks.

use flash_indexer_server::ServerOptions;
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_snapshot::{DumpEntry, DumpSink, RankName, RankRecord, Rejection, read_dump};
use flash_indexer_wire::{BlockRemoved, BlockStored, CacheGroup, EngineEvent, ExtraKey, TokenIds};
use serde_json::{Value, json};

use crate::support::{Engine, Service, removed, store, stored, tokens};

const WINDOW: CacheGroup<'static> = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(8) };
const FULL: CacheGroup<'static> = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };

/// Copies in host memory that events name by sequence hash and group number.
fn offloaded<'a>(group: CacheGroup<'a>, hashes: &[u64]) -> EngineEvent<'a> {
    let group = CacheGroup { idx: group.idx, ..CacheGroup::default() };
    let tokenless = BlockStored { token_ids: TokenIds::default(), block_size: 0, ..store(None, hashes) };
    EngineEvent::Stored(BlockStored { medium: Some("CPU"), group, ..tokenless })
}

fn removed_from<'a>(group: CacheGroup<'a>, hashes: &[u64]) -> EngineEvent<'a> {
    let block_hashes = store(None, hashes).block_hashes;
    EngineEvent::Removed(BlockRemoved { block_hashes, group_idx: group.idx, ..BlockRemoved::default() })
}

fn in_group<'a>(group: CacheGroup<'a>, parent: Option<u64>, hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { group, ..store(parent, hashes) })
}

/// Engines that have offloaded before the takeover and drop blocks: a plain one, a hybrid one, one with a salt, and one without dropped
/// contents. A clear ends the doubt after an offload of an unknown block.
fn fleet(service: &Service) -> [Engine; 4] {
    let engines = [1, 2, 3, 4].map(|instance| {
        let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
        Engine::with_replay(service, json!(instance), publisher)
    });
    let [plain, hybrid, salted, fresh] = &engines;
    let none = CacheGroup::default();
    let first = [stored(None, &[1]), offloaded(none, &[1])];
    plain.say(service, 0, &[&first[..], &[stored(Some(1), &[2, 3, 4]), removed(&[4, 3])]].concat());
    let first = [in_group(FULL, None, &[1]), in_group(WINDOW, None, &[1]), offloaded(FULL, &[1])];
    let more = [in_group(FULL, Some(1), &[2, 3]), in_group(WINDOW, Some(1), &[2, 3])];
    let evicted = [removed_from(FULL, &[3, 2]), removed_from(WINDOW, &[3, 2, 1])];
    hybrid.say(service, 0, &[&first[..], &more, &evicted].concat());
    let keys = vec![Some(vec![ExtraKey::Text("s")])];
    let root = EngineEvent::Stored(BlockStored { extra_keys: Some(keys), ..store(None, &[1]) });
    let evicted = [stored(Some(1), &[2]), removed(&[2])];
    salted.say(service, 0, &[&[offloaded(none, &[9]), EngineEvent::Cleared, root][..], &evicted].concat());
    fresh.say(service, 0, &[offloaded(none, &[1]), EngineEvent::Cleared]);
    engines
}

/// The part of the whole fleet in answers, without and with a salt. Both services must agree.
fn ask(a: &Service, b: &Service, hashes: &[u64]) -> [[Value; 2]; 4] {
    let prompt = [tokens(hashes), vec![5]].concat();
    let [plain, salted] = [None, Some("s")].map(|salt| {
        let query = json!({ "token_ids": prompt, "model_name": "m", "cache_salt": salt });
        let answer = a.query(&query);
        assert_eq!(answer, b.query(&query));
        answer
    });
    ["1", "2", "3", "4"].map(|instance| {
        [&plain, &salted].map(|answer| {
            let instance = &answer["instances"][instance];
            assert_eq!(instance["trust"], json!("exact"), "{answer}");
            instance["longest_matched"].clone()
        })
    })
}

/// Checks that events about blocks dropped before the takeover have the same effect on both services.
fn goes_on_exactly(a: &Service, b: &Service, engines: &[Engine; 4]) {
    for engine in engines {
        // After a file was read, a stream may still have to connect.
        engine.wait(b, "the engine's word", |listener| listener["trust"] == json!("exact"));
    }
    let none = CacheGroup::default();
    let [plain, hybrid, salted, fresh] = engines;
    plain.say_to_both((a, b), 1, &[offloaded(none, &[3])]);
    // Block 2 was held at the takeover, and is dropped after it.
    plain.say_to_both((a, b), 2, &[removed(&[2]), offloaded(none, &[4, 2])]);
    hybrid.say_to_both((a, b), 1, &[offloaded(WINDOW, &[2, 3]), offloaded(FULL, &[2, 3])]);
    let on_cpu = EngineEvent::Stored(BlockStored { medium: Some("CPU"), ..store(Some(1), &[2]) });
    salted.say_to_both((a, b), 1, &[on_cpu, stored(Some(2), &[3])]);
    fresh.say_to_both((a, b), 1, &[stored(None, &[1, 2]), removed(&[2, 1]), offloaded(none, &[1, 2])]);
    let [[plain, _], [hybrid, _], salted, [fresh, _]] = ask(a, b, &[1, 2, 3, 4]);
    assert_eq!([plain, hybrid, fresh], [json!(16), json!(12), json!(8)]);
    assert_eq!(salted, [json!(0), json!(12)]);
}

fn lines(service: &Service) -> String {
    let request = ureq::get(service.url("/dump")).header("accept", "application/x-ndjson");
    request.call().expect("an answer").body_mut().read_to_string().expect("text")
}

#[test]
fn an_offload_of_a_block_that_was_dropped_before_the_takeover_counts() {
    let survivor = Service::start();
    let engines = fleet(&survivor);
    let first = Service::from_peer(&survivor.url(""));
    for engine in &engines {
        engine.wait(&first, "the engine's word", |listener| listener["trust"] == json!("exact"));
    }
    // From a service that was itself recovered, and has received nothing since.
    let recovered = Service::from_peer(&first.url(""));
    goes_on_exactly(&survivor, &recovered, &engines);
    goes_on_exactly_afterwards(&survivor, &recovered, &engines);
}

/// Checks that both services then have the same dropped contents, with a third service recovered from the second.
fn goes_on_exactly_afterwards(a: &Service, b: &Service, engines: &[Engine; 4]) {
    let again = Service::from_peer(&b.url(""));
    let plain = &engines[0];
    plain.wait(&again, "the engine's word", |listener| listener["trust"] == json!("exact"));
    let host = EngineEvent::Removed(BlockRemoved {
        medium: Some("CPU"),
        block_hashes: store(None, &[2, 3]).block_hashes,
        ..BlockRemoved::default()
    });
    plain.say_to_both((a, &again), 3, &[host]);
    plain.say_to_both((a, &again), 4, &[offloaded(CacheGroup::default(), &[3, 2])]);
    assert_eq!(ask(a, &again, &[1, 2, 3, 4])[0][0], json!(16));
}

#[test]
fn so_it_does_when_a_file_was_loaded_in_either_form() {
    for accept in ["application/json", "application/x-ndjson"] {
        let survivor = Service::start();
        let engines = fleet(&survivor);
        let request = ureq::get(survivor.url("/dump?hashes=string")).header("accept", accept);
        let dump = request.call().expect("an answer").body_mut().read_to_string().expect("text");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("fleet");
        std::fs::write(&file, dump).expect("a file");
        let loaded = Service::recovered(ServerOptions { load: Some(file), ..ServerOptions::default() });
        goes_on_exactly(&survivor, &loaded, &engines);
    }
}

/// Counts held blocks, and the contents of dropped ones.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    held: usize,
    marked: usize,
    gone: usize,
}

impl DumpSink for Counts {
    fn rank(&mut self, _: RankRecord) -> Result<(), Rejection> {
        Ok(())
    }

    fn entry(&mut self, _: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        match entry {
            DumpEntry::Blocks(stored) => {
                self.held += stored.blocks.len();
                self.marked += stored.blocks.len() * usize::from(stored.remembered.is_some());
            }
            DumpEntry::Recent(gone) => self.gone += gone.blocks.len(),
            DumpEntry::Secondary(_) | DumpEntry::Kept(_) => {}
        }
        Ok(())
    }
}

#[test]
fn each_content_is_told_once_and_damage_to_it_is_noticed() {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let none = CacheGroup::default();
    let chain: Vec<u64> = (10..2_000).collect();
    engine.say(&service, 0, &[stored(None, &[1]), offloaded(none, &[1]), stored(Some(1), &chain)]);
    engine.say(&service, 1, &[offloaded(none, &[10, 11]), removed(&chain[1_000..])]);
    let dump = lines(&service);
    let read = |dump: &str| {
        let mut counts = Counts::default();
        read_dump(dump.as_bytes(), &mut counts).map(|_| counts).map_err(|error| error.to_string())
    };
    // Block 1 was stored before the first offload.
    assert_eq!(read(&dump), Ok(Counts { held: 1 + 1_000 + 1 + 2, marked: 1_000, gone: 990 }));
    let gone = dump.lines().find(|line| line.contains("\"gone\"")).expect("what is gone").to_owned();
    let event: Value = serde_json::from_str(&gone).expect("JSON");
    assert_eq!(event["event"]["data"]["stored"]["blocks"], json!([]), "other readers store nothing: {gone}");
    let held = dump.lines().find(|line| line.contains("\"remembered\"")).expect("what is held").to_owned();
    for (line, damaged) in [
        (&gone, String::new()),
        (&gone, gone.replacen("\"tokens_hash\":", "\"tokens_hash\":1", 1)),
        (&gone, gone.replace("young", "old")),
        (&held, held.replace("\"remembered\":\"young\",", "")),
    ] {
        assert_ne!(*line, damaged);
        let damaged = dump.replace(&format!("{line}\n"), &format!("{damaged}\n")).replace("\n\n", "\n");
        let error = read(&damaged).expect_err("it is damaged");
        assert!(error.contains("remembered"), "{error}");
    }
}
