//! Ranks of a peer's dump whose registration is refused: they are not restored.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{IndexerOptions, InstanceId, ModelKey, Registration, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use serde_json::json;

use crate::support::{BLOCK_TOKENS, Engine, Service, stored, tokens};

#[test]
fn a_rank_that_a_limit_refuses_at_a_recovery_is_not_restored() {
    let survivor = Service::start();
    let engines = [1, 2].map(|instance| Engine::registered(&survivor, json!(instance), 0, &json!({})));
    engines.iter().for_each(|engine| engine.say(&survivor, 0, &[stored(None, &[1, 2, 3])]));
    let peers = vec![survivor.url("").parse().expect("a URL")];
    let indexer = IndexerOptions { listeners_max: 1, ..IndexerOptions::default() };

    let replica = Service::recovered(ServerOptions { peers, indexer, ..ServerOptions::default() });
    let answer = replica.query(&json!({ "model_name": "m", "token_ids": tokens(&[1, 2, 3]) }));
    assert_eq!(answer["scores"], json!({ "1": { "0": 12 } }), "{answer}");
    assert_eq!(replica.get("/workers").1.as_array().map(Vec::len), Some(1));
    assert!(replica.metrics().value("flash_indexer_limit_reached_total", &[("limit", "listeners")]) >= 1.0);
}

#[test]
fn a_rank_that_is_registered_at_another_endpoint_takes_no_state_from_a_dump() {
    let survivor = Service::start();
    let former = Engine::registered(&survivor, json!(1), 0, &json!({}));
    former.say(&survivor, 0, &[stored(None, &[1, 2, 3])]);
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("four");
    let registration =
        Registration::new(InstanceId::number(1), ModelKey::new("m", None), publisher.endpoint(), block_size);
    let peers = vec![survivor.url("").parse().expect("a URL")];

    let replica =
        Service::recovered(ServerOptions { peers, registrations: vec![registration], ..ServerOptions::default() });
    let present = Engine { publisher, instance: json!(1), rank: 0 };
    // It continues the numbers of the other engine, and has none of its blocks.
    present.say(&replica, 1, &[stored(None, &[9])]);
    assert_eq!(replica.score(&tokens(&[1, 2, 3]), "1", 0), 0);
    assert_ne!(replica.listener(&json!(1), 0)["trust"], json!("exact"), "its first message is missing");
}
