//! The calls that the tests of all clients make, and the service's answers.

use std::collections::BTreeMap;
use std::time::Duration;

use flash_indexer_client::{
    Client, ClientError, Events, InstanceId, ModelScope, PodScores, Prompt, PromptOptions, RegisterRequest, TokenQuery,
    UncheckedInstanceId, UnregisterRequest,
};
use flash_indexer_server::{Server, ServerOptions};
use serde::Deserialize;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Vectors {
    model: String,
    block_size: u32,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
struct Step {
    call: String,
    instance: Option<String>,
    block_size: Option<u32>,
    #[serde(default)]
    prompt: Vec<(u32, u32)>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    #[serde(default)]
    after_last: bool,
    #[serde(default)]
    pods: Vec<String>,
    matched: Option<BTreeMap<String, u64>>,
    held: Option<BTreeMap<String, u32>>,
    cursor_tokens: Option<u64>,
    blocks: Option<usize>,
    refused: Option<u16>,
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_answer_as_the_vectors_of_all_clients_say() {
    let text = std::fs::read_to_string("../../clients/testdata/calls.json").expect("the vectors");
    let vectors: Vectors = serde_json::from_str(&text).expect("vectors");
    assert!(vectors.steps.len() >= 19);
    let server = Server::start(ServerOptions { port: 0, ..ServerOptions::default() }).await.expect("a server");
    let client = Client::new(&server.url()).expect("a URL").with_deadline(PATIENCE);
    let mut cursor = Value::Null;
    for step in &vectors.steps {
        match (make(&client, &vectors, step, &mut cursor).await, step.refused) {
            (Ok(()), None) => {}
            (Err(ClientError::Refused { status, .. }), Some(refused)) if status == refused => {}
            (made, _) => panic!("{step:?}: {made:?}"),
        }
    }
    server.stop().await;
}

/// Makes a call, checks its answer, and keeps the cursor of an answer to a query.
async fn make(client: &Client, vectors: &Vectors, step: &Step, cursor: &mut Value) -> Result<(), ClientError> {
    let scope = || ModelScope::of(&vectors.model, None);
    let tokens: Vec<u32> = step.prompt.iter().flat_map(|&(first, count)| first..first + count).collect();
    let prompt = Prompt::Tokens(&vectors.model, &tokens);
    let given = |name: &str| UncheckedInstanceId::from(InstanceId::parse(name).expect("an id"));
    let instance = || given(step.instance.as_deref().expect("the step names an instance"));
    match step.call.as_str() {
        "register" => {
            let rank = RegisterRequest {
                instance_id: instance(),
                endpoint: None,
                events: Some(Events::None),
                cache_blocks: None,
                kind: None,
                shared_caches: None,
                scope: scope(),
                block_size: Some(step.block_size.unwrap_or(vectors.block_size)),
                dp_rank: None,
                replay_endpoint: None,
                lora_name: None,
                engine: None,
                removal: None,
                extra_keys: None,
            };
            client.register(&rank).await?;
        }
        "unregister" => {
            let request = UnregisterRequest { instance_id: instance(), scope: scope(), dp_rank: None };
            client.unregister(&request).await?;
        }
        "predict" => {
            let instance = InstanceId::parse(step.instance.as_deref().expect("an instance")).expect("an id");
            let answer = client.predict(&instance, prompt, &PromptOptions::default()).await?;
            assert_eq!(Some(answer.blocks), step.blocks, "{step:?}");
        }
        "score" => {
            let pods = step.pods.iter().map(|pod| given(pod)).collect();
            let answer = client.score(prompt, &PromptOptions { pods, ..PromptOptions::default() }).await?;
            let PodScores::Detailed { pods, .. } = answer else { panic!("scores have details") };
            let held = pods.into_iter().map(|(pod, score)| (pod, score.held_blocks)).collect();
            assert_eq!(Some(held), step.held, "{step:?}");
        }
        "query" => {
            let after = step.after_last.then(|| serde_json::from_value(cursor.clone()).expect("a cursor"));
            let query = TokenQuery {
                token_ids: tokens.clone(),
                scope: scope(),
                lora_name: step.lora_name.clone(),
                cache_salt: step.cache_salt.clone(),
                after,
                ..TokenQuery::default()
            };
            let answer = client.query(&query).await?;
            let matched = answer.instances.iter().map(|(name, held)| (name.to_string(), held.longest_matched));
            assert_eq!(
                (Some(matched.collect()), answer.cursor_tokens),
                (step.matched.clone(), step.cursor_tokens),
                "{step:?}"
            );
            *cursor = serde_json::to_value(answer.cursor).expect("JSON");
        }
        other => panic!("unknown call {other}"),
    }
    Ok(())
}
