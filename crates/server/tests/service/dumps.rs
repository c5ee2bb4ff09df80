//! Contents of a dump in all of its forms. A part of a dump is never accepted as a complete one.

use std::collections::BTreeMap;
use std::io::Read;

use flash_indexer_core::{BlockEvent, Tier};
use flash_indexer_server::{ModelKey, Trust};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_snapshot::{
    DumpEntry, DumpError, DumpSink, DumpSummary, RankName, RankRecord, Rejection, StoredBlocks, read_dump,
};
use flash_indexer_wire::{BlockStored, EngineEvent};
use serde_json::json;

use crate::support::{Engine, Service, store, stored};

/// Accepts everything, and counts blocks and copies by instance and tier.
#[derive(Default, Debug, PartialEq)]
struct Taken {
    records: Vec<RankRecord>,
    blocks: BTreeMap<(String, String, u32, Tier), (usize, u32)>,
}

impl DumpSink for Taken {
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection> {
        self.records.push(record);
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        let DumpEntry::Blocks(StoredBlocks { tier, blocks, copies, .. }) = entry else {
            panic!("unexpected entry of a hybrid model: {entry:?}")
        };
        let name = (rank.key.to_string(), rank.instance.to_string(), rank.dp_rank.0, tier);
        let (blocks_taken, copies_taken) = self.blocks.entry(name).or_default();
        *blocks_taken += blocks.len();
        *copies_taken += copies * blocks.len() as u32;
        Ok(())
    }
}

fn take(dump: &[u8]) -> Result<(Taken, DumpSummary), DumpError> {
    let mut taken = Taken::default();
    read_dump(dump, &mut taken).map(|summary| (taken, summary))
}

/// A service that holds a little of everything.
fn service() -> (Service, Vec<Engine>) {
    let service = Service::start();
    let engine = Engine::registered(&service, json!(1), 0, &json!({ "engine": "vllm", "lora_name": "a" }));
    let other = Engine::registered(&service, json!("pod:b"), 2, &json!({ "tenant_id": "t", "removal": "last_copy" }));
    let idle = Engine::registered(&service, json!(3), 1, &json!({}));
    let host = EngineEvent::Stored(BlockStored { medium: Some("CPU"), ..store(Some(2), &[3]) });
    let chain: Vec<u64> = (10..2_000).collect();
    engine.say(&service, 0, &[stored(None, &[1, 2]), stored(Some(1), &[2]), host, stored(Some(2), &chain)]);
    other.say(&service, 0, &[stored(None, &[1, 2, 3]), stored(Some(77), &[78])]);
    (service, vec![engine, other, idle])
}

fn fetch(service: &Service, accept: &str, encoding: &str) -> Vec<u8> {
    let request = ureq::get(service.url("/dump")).header("accept", accept).header("accept-encoding", encoding);
    let mut response = request.call().expect("an answer");
    let compressed = response.headers().get("content-encoding").is_some_and(|encoding| encoding == "zstd");
    assert_eq!(compressed, encoding == "zstd");
    let mut bytes = Vec::new();
    response.body_mut().as_reader().read_to_end(&mut bytes).expect("a body");
    bytes
}

const LINES: &str = "application/x-ndjson";
const OBJECT: &str = "application/json";

#[test]
fn every_form_says_the_same() {
    let (service, engines) = service();
    let (taken, summary) = take(&fetch(&service, LINES, "identity")).expect("a dump in lines");
    for (accept, encoding) in [(LINES, "zstd"), (OBJECT, "identity"), (OBJECT, "zstd")] {
        let again = take(&fetch(&service, accept, encoding)).expect("a dump");
        assert_eq!((&again.0, again.1), (&taken, summary), "{accept} {encoding}");
    }
    let name = |model: &str, instance: &str, rank, tier| (model.to_owned(), instance.to_owned(), rank, tier);
    let expected = [
        (name("m:default", "1", 0, Tier::Device), (1_992, 1_993)),
        (name("m:default", "1", 0, Tier::Host), (1, 1)),
        (name("m:t", "pod:b", 2, Tier::Device), (4, 4)),
    ];
    assert_eq!(taken.blocks, BTreeMap::from(expected));
    assert_eq!((summary.ranks, summary.holds.blocks), (3, 1_997));

    let record = |instance: &str| {
        let found = taken.records.iter().find(|record| record.instance_id.to_string() == instance);
        found.unwrap_or_else(|| panic!("no rank of {instance}"))
    };
    let engine = record("1").engine.as_ref().expect("it is registered");
    assert_eq!(engine.endpoint, engines[0].publisher.endpoint());
    assert_eq!(json!(engine)["engine"], json!("vllm"));
    assert_eq!(engine.lora_name.as_deref(), Some("a"));
    assert_eq!(json!(record("pod:b"))["engine"]["removal"], json!("last_copy"));
    assert_eq!((record("3").holds.blocks, record("3").dp_rank), (0, 1), "a rank without blocks has a record");
}

#[test]
fn a_request_for_the_headers_alone_writes_no_dump() {
    let (service, _engines) = service();
    let request = |method: &str| {
        let request = ureq::http::Request::builder().method(method).uri(service.url("/dump")).header("accept", LINES);
        ureq::run(request.body(()).expect("a request")).expect("an answer")
    };
    let (head, get) = (request("HEAD"), request("GET"));
    assert_eq!(head.status(), 200);
    for name in ["content-type", "vary"] {
        assert_eq!(head.headers()[name], get.headers()[name]);
    }
    for answer in [&head, &get] {
        assert!(!answer.headers().contains_key("content-length"), "the length is not known: {answer:?}");
    }
}

#[test]
fn no_part_of_a_dump_is_taken_for_the_whole() {
    let (service, _engines) = service();
    for (accept, encoding) in [(LINES, "identity"), (LINES, "zstd"), (OBJECT, "identity"), (OBJECT, "zstd")] {
        let dump = fetch(&service, accept, encoding);
        // Every length near the start and the end, and some in between.
        let near = 300.min(dump.len() - 1);
        let lengths = (0..near).chain((near..dump.len()).step_by(997)).chain(dump.len() - near..dump.len());
        for length in lengths {
            assert!(take(&dump[..length]).is_err(), "{accept} {encoding}: {length} of {} bytes", dump.len());
        }
    }
}

#[test]
fn damage_is_noticed() {
    let (service, _engines) = service();
    let lines = String::from_utf8(fetch(&service, LINES, "identity")).expect("text");
    let all: Vec<&str> = lines.lines().collect();
    let without = |left_out: usize| {
        let kept = all.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, line)| format!("{line}\n"));
        kept.collect::<String>()
    };
    for (left_out, line) in all.iter().enumerate().skip(1) {
        assert!(take(without(left_out).as_bytes()).is_err(), "line {left_out} is not missed: {line}");
    }
    let later_kind = lines.replacen("{\"rank\":", "{\"from_a_later_program\":[1,{}]}\n{\"rank\":", 1);
    assert!(take(later_kind.as_bytes()).is_ok(), "lines of later programs are skipped");
    let cases = [
        (lines.replacen("{\"rank\":", "garbage\n{\"rank\":", 1), "line 2"),
        (lines.replacen("\"version\":1", "\"version\":99", 1), "version 99"),
        (lines.replacen("\"copies\":2", "\"copies\":3", 1), "should hold"),
        (lines.replacen("\"tokens_hash\":", "\"tokens_hash\":1", 1), ""),
        (lines.replacen("\"worker_id\":1,", "\"worker_id\":2,", 1), "other than that of the record"),
        (lines.replacen("\"storage_tier\":\"device\"", "\"storage_tier\":\"attic\"", 1), "attic"),
        (format!("{lines}{}\n", all[1]), "data follows"),
        ("[]".to_owned(), "check that the input is a dump"),
        (String::new(), "cut off"),
    ];
    for (dump, part) in cases {
        let error = take(dump.as_bytes()).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let object = String::from_utf8(fetch(&service, OBJECT, "identity")).expect("text");
    for (from, to) in [("\"copies\":2", "\"copies\":3"), ("\"dp_rank\":0,\"data\"", "\"dp_rank\":9,\"data\"")] {
        assert!(take(object.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
    }
}

#[test]
fn a_dump_of_another_indexer_is_read() {
    let dump = json!({
        "org/model:tagged:customer-a": { "block_size": 16, "events": [
            { "worker_id": 7, "event": { "event_id": 0, "dp_rank": 1, "data": { "stored": {
                "parent_hash": null, "blocks": [{ "block_hash": 11, "tokens_hash": 22 }] } } } },
            { "worker_id": 8, "storage_tier": "host_pinned", "event": { "event_id": 1, "data": { "stored": {
                "parent_hash": -5, "start_position": 3, "more": {}, "blocks": [
                    { "block_hash": u64::MAX, "tokens_hash": "0xff", "mm_extra_info": { "mm_objects": [] } },
                ] } } } },
            { "worker_id": 7, "event": { "event_id": 2, "dp_rank": 1, "data": { "stored": {
                "parent_hash": 11, "blocks": [{ "block_hash": 12, "tokens_hash": 23 }] } } } },
        ] },
        "other:default": { "block_size": 8, "events": [] },
    });
    let (taken, summary) = take(dump.to_string().as_bytes()).expect("a dump");
    let name = |instance: &str, rank, tier| ("org/model:tagged:customer-a".to_owned(), instance.to_owned(), rank, tier);
    let expected = [(name("7", 1, Tier::Device), (2, 2)), (name("8", 0, Tier::Host), (1, 1))];
    assert_eq!(taken.blocks, BTreeMap::from(expected));
    assert_eq!((taken.records.len(), summary.ranks), (0, 2));
    for (dump, part) in [
        (json!({ "m:t": { "events": [], "block_size": 0 } }), "block size"),
        (json!({ "m:t": { "block_size": 8 } }), "events"),
        (
            json!({ "m:t": { "block_size": 8, "events": [{ "worker_id": 1, "event": { "data": "cleared" } }] } }),
            "cleared",
        ),
    ] {
        let error = take(dump.to_string().as_bytes()).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_rank_that_is_registered_again_during_a_dump_is_dumped_with_its_blocks() {
    let service = Service::start();
    let first = Engine::registered(&service, json!("a"), 0, &json!({}));
    first.say(&service, 0, &[stored(None, &[1])]);
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let second = Engine::with_replay(&service, json!("z"), publisher);
    second.say(&service, 0, &[stored(None, &[1, 2])]);

    let key = ModelKey::new("m", None);
    let mut dump = service.indexer().records(&key, None).map(|(_, rank)| rank);
    assert_eq!(dump.next().map(|rank| rank.instance.to_string()).as_deref(), Some("a"));
    let (status, answer) = service.post("/unregister", &json!({ "instance_id": "z", "model_name": "m" }));
    assert_eq!(status, 200, "{answer}");
    second.register(&service, &json!({ "replay_endpoint": second.publisher.replay_endpoint() }));
    second.wait(&service, "the replay", |listener| listener["trust"] == "exact");

    let dumped = dump.next().expect("the second instance");
    let blocks = dumped.events.iter().map(|event| match event {
        BlockEvent::Stored { blocks, .. } => blocks.len(),
        _ => 0,
    });
    assert_eq!((dumped.instance.to_string().as_str(), blocks.sum::<usize>()), ("z", 2));
    assert!(dumped.position.is_some_and(|position| position.trust == Trust::Exact));
}
