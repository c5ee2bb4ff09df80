//! Recorded engines, played through real sockets: the score of a text or a chat equals the cached part that the engine itself reported.
//!
//! The prompts of the recordings are random tokens, which are not a text of a real tokenizer. The service therefore gets a tokenizer with a
//! word for each token.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flash_indexer_core::DpRank;
use flash_indexer_server::{IndexerOptions, ServerOptions, TokenizationOptions};
use flash_indexer_sim::{
    Publisher, PublisherOptions, RecordedLine, RecordedMessage, RecordedRequest, Recording, reusable_blocks,
};
use flash_indexer_test_support::testdata;
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::support::proto::GetPodScoresRequest;
use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::{Engine, Service};

/// The model of all engines.
const MODEL: &str = "m";
/// Tokens that have a word.
const WORDS: u32 = 8_192;
/// Template that adds only the space between two messages.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ message.content }} {% endfor %}";

fn text_of(tokens: &[u32]) -> String {
    tokens.iter().map(|token| format!("t{token}")).collect::<Vec<_>>().join(" ")
}

/// A directory of models with a model in which token 7 is the word `t7`.
fn models() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let model = directory.path().join(MODEL);
    std::fs::create_dir(&model).expect("a directory");
    let words: BTreeMap<String, u32> = (0..WORDS).map(|token| (format!("t{token}"), token)).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "t0" },
    });
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).expect("a file");
    let config = json!({ "chat_template": CHAT_TEMPLATE });
    std::fs::write(model.join("tokenizer_config.json"), config.to_string()).expect("a file");
    directory
}

fn recordings(data: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(data.join("engines")).expect("the folder of streams");
    let mut streams: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    streams.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    streams.sort();
    streams
}

/// A recording and its ranks. Each rank is a separate pod, because a pod's best rank would hide the others.
struct Played<'a> {
    name: String,
    recording: &'a Recording,
    pods: BTreeMap<DpRank, Engine>,
    service: &'a Service,
    scores: IndexerServiceClient<Channel>,
}

/// Numbers of compared scores.
#[derive(Default)]
struct Checked {
    requests: usize,
    hits: usize,
}

impl<'a> Played<'a> {
    /// Registers engines that have published nothing yet, in a separate tenant.
    fn register(name: String, recording: &'a Recording, service: &'a Service, channel: Channel) -> Self {
        let pods = recording.dp_ranks.iter().map(|&dp_rank| {
            let topic = recording.messages().find(|message| message.dp_rank == dp_rank).expect("it published");
            let publisher = Publisher::bind(PublisherOptions {
                topic: topic.topic.clone(),
                framing: recording.replay_framing,
                ..PublisherOptions::on_loopback()
            });
            let publisher = publisher.expect("free ports");
            let registration = json!({
                "replay_endpoint": publisher.replay_endpoint(), "block_size": recording.block_size.tokens(),
                "tenant_id": name,
            });
            let pod = Engine { publisher, instance: json!(format!("{name} {dp_rank}")), rank: dp_rank.0 };
            pod.register(service, &registration);
            (dp_rank, pod)
        });
        let pods = pods.collect();
        Self { name, recording, pods, service, scores: IndexerServiceClient::new(channel) }
    }

    /// Plays everything. A request is scored before its changes are published. Requests whose cache is unknown are left out: concurrent
    /// ones, and those after a reset, which an engine publishes only with its next step.
    fn play(&mut self) -> Checked {
        let mut checked = Checked::default();
        let mut own_messages: Vec<&RecordedMessage> = Vec::new();
        let mut after_reset = false;
        for line in &self.recording.lines {
            match line {
                RecordedLine::Message(message) => {
                    own_messages.push(message);
                    continue;
                }
                RecordedLine::Request(request) if !request.concurrent && !after_reset => {
                    let publisher = own_messages.first().map(|message| message.dp_rank);
                    self.check(request, request.dp_rank.or(publisher).unwrap_or(self.recording.dp_ranks[0]));
                    checked.requests += 1;
                    checked.hits += usize::from(request.cached_tokens > 0);
                }
                _ => {}
            }
            after_reset = matches!(line, RecordedLine::Reset);
            self.publish(&std::mem::take(&mut own_messages));
        }
        for Engine { instance, rank, .. } in self.pods.values() {
            let listener = self.service.listener(instance, *rank);
            assert_eq!(listener["rejected"], json!({}), "{}: {listener}", self.name);
            // Some recordings begin after the engine's first message.
            let why = listener["last_error"].as_str();
            let is_whole = why.is_none_or(|why| why.ends_with(" published before the first one received"));
            assert!(is_whole, "{}: {listener}", self.name);
        }
        checked
    }

    fn publish(&self, messages: &[&RecordedMessage]) {
        for message in messages {
            let pod = &self.pods[&message.dp_rank];
            pod.publisher.publish(message.sequence, &message.payload).expect("a socket");
        }
        for (dp_rank, pod) in &self.pods {
            let last = messages.iter().rev().find(|message| message.dp_rank == *dp_rank);
            if let Some(last) = last.map(|message| message.sequence) {
                pod.wait(self.service, "a message", |listener| listener["last_seq"].as_u64() >= Some(last));
            }
        }
    }

    /// Checks the scores of a request's prompt over every interface.
    fn check(&mut self, request: &RecordedRequest, dp_rank: DpRank) {
        let RecordedRequest { id, prompt, cached_tokens, lora_name, cache_salt, .. } = request;
        let about = format!("{} {id} of {} tokens", self.name, prompt.len());
        let pod = self.pods[&dp_rank].instance.as_str().expect("a name").to_owned();
        // An engine always computes the last token.
        let usable = reusable_blocks(prompt.len(), self.recording.block_size) as u64;
        let expected = (*cached_tokens / self.recording.block_size.token_count()) as u64;
        let common = json!({
            "model": MODEL, "tenant_id": self.name, "lora_name": lora_name, "cache_salt": cache_salt, "detail": true,
            "pods": [pod],
        });
        let ask = |path: &str, more: &Value| {
            let mut body = common.clone();
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let (status, mut answer) = self.service.post(path, &body);
            assert_eq!(status, 200, "{about}: {answer}");
            answer["pods"][&pod].take()
        };
        let completion = ask("/score_completions", &json!({ "prompt": text_of(prompt) }));
        let held = completion["held_blocks"].as_u64().unwrap_or(0);
        assert_eq!(held.min(usable), expected, "{about}: {completion}");
        // All recorded blocks are in device memory.
        assert_eq!(completion["score"].as_f64().unwrap_or(0.0), held as f64, "{about}: {completion}");

        let (question, answer) = prompt.split_at(prompt.len() / 2);
        let messages = json!([
            { "role": "user", "content": text_of(question) }, { "role": "assistant", "content": text_of(answer) },
        ]);
        assert_eq!(ask("/score_chat_completions", &json!({ "messages": messages })), completion, "{about}: as a chat");

        let request = GetPodScoresRequest {
            prompt: Some(text_of(prompt)),
            model_name: MODEL.to_owned(),
            pod_identifiers: vec![pod.clone()],
            tenant_id: self.name.clone(),
            lora_name: lora_name.clone().unwrap_or_default(),
            cache_salt: cache_salt.clone().unwrap_or_default(),
            ..GetPodScoresRequest::default()
        };
        let scored = self.service.block_on(self.scores.get_pod_scores(request)).expect("scores").into_inner();
        let scored = scored.scores.iter().find(|scored| scored.pod == pod);
        let scored = scored.map(|scored| (u64::from(scored.held_blocks), scored.score));
        assert_eq!(scored, (held > 0).then_some((held, held as f64)), "{about}: over gRPC");
    }
}

#[test]
fn texts_and_chats_are_scored_as_recorded_engines_had_them() {
    let data = testdata();
    let models = models();
    let tokenization =
        TokenizationOptions { directory: Some(models.path().to_owned()), ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, grpc_port: Some(0), ..ServerOptions::default() });
    let channel = service.channel();
    let recordings: Vec<(String, Recording)> = recordings(&data)
        .iter()
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, Recording::open(path).expect("a recording"))
        })
        // SGLang's default format does not have `extra_key`, which separates contents.
        .filter(|(_, recording)| !recording.requests().any(|request| request.extra_key.is_some()))
        .collect();
    assert!(recordings.len() >= 5, "the recorded streams are there");
    let play = &|name: &String, recording| Played::register(name.clone(), recording, &service, channel.clone()).play();
    std::thread::scope(|scope| {
        for (name, recording) in &recordings {
            scope.spawn(move || {
                let checked = play(name, recording);
                println!("{name}: {} requests, {} with hits", checked.requests, checked.hits);
                assert!(checked.requests > 0 && checked.hits > 0, "{name}: {} of {}", checked.hits, checked.requests);
            });
        }
    });
}
