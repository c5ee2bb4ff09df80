//! JSON of an answer to a query, written into one buffer.

use std::ops::Range;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use flash_indexer_core::Tier;
use flash_indexer_registry::{Answer, AnswerCursor, InstanceName, RankAnswer};

/// Expected bytes of an instance with one rank, without its name, which occurs three times.
const INSTANCE_BYTES: usize = 160;
/// Expected bytes of an answer without instances.
const ENVELOPE_BYTES: usize = 128;

/// Response of a query, by instance and then by rank. Scores are in tokens.
pub(super) struct QueryResponse(pub(super) Answer);

impl IntoResponse for QueryResponse {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(json(&self.0)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

fn json(answer: &Answer) -> Vec<u8> {
    let mut out = Json(Vec::with_capacity(ENVELOPE_BYTES + answer.ranks.len() * INSTANCE_BYTES));
    out.text("{\"scores\":");
    let device = |rank: &RankAnswer| rank.tokens[Tier::Device];
    let has_same_score = |a: &RankAnswer, b: &RankAnswer| (a.dp_rank, device(a)) == (b.dp_rank, device(b));
    out.by_instance(answer, has_same_score, |out, ranks| out.by_rank(ranks, device));
    out.text(",\"frequencies\":");
    out.list(answer.frequencies.iter().copied());
    out.text(",\"tree_sizes\":");
    // Instances seldom hold equally many blocks.
    out.by_instance(answer, |_, _| false, |out, ranks| out.by_rank(ranks, |rank| rank.blocks_held as u64));
    out.text(",\"instances\":");
    let shown = |rank: &RankAnswer| (rank.dp_rank, rank.tokens, rank.trust, rank.partial);
    let is_same = |a: &RankAnswer, b: &RankAnswer| answer.has_no_shared_matches() && shown(a) == shown(b);
    out.by_instance(answer, is_same, |out, ranks| out.instance(answer, ranks));
    if let Some(AnswerCursor { cursor, tokens }) = answer.cursor {
        // A string, for readers whose numbers have 53 bits.
        out.text(",\"cursor\":\"");
        out.number(cursor);
        out.text("\",\"cursor_tokens\":");
        out.number(tokens);
    }
    if let Some(store) = answer.store.as_str() {
        out.text(",\"store\":\"");
        out.text(store);
        out.text("\"");
    }
    out.text("}");
    out.0
}

/// Writer of JSON.
struct Json(Vec<u8>);

impl Json {
    fn text(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, number: impl itoa::Integer) {
        self.text(itoa::Buffer::new().format(number));
    }

    fn list(&mut self, numbers: impl Iterator<Item = u32>) {
        self.items("[", numbers, |out, number| out.number(number));
        self.text("]");
    }

    /// An object or a list without its end.
    fn items<T>(&mut self, start: &str, items: impl Iterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.text(start);
        for (at, item) in items.enumerate() {
            if at > 0 {
                self.text(",");
            }
            write(self, item);
        }
    }

    /// An object with a value for each instance. Where `is_same` says that the ranks of an instance have the values of those before it,
    /// the text is copied: many instances match a common prefix equally.
    fn by_instance(
        &mut self,
        answer: &Answer,
        is_same: impl Fn(&RankAnswer, &RankAnswer) -> bool,
        write: impl Fn(&mut Self, &[RankAnswer]),
    ) {
        let mut written: (&[RankAnswer], Range<usize>) = (&[], 0..0);
        self.items("{", answer.instances(), |out, (name, ranks): (&InstanceName, _)| {
            out.text(name.json_key());
            let (before, text) = &written;
            if before.len() == ranks.len() && before.iter().zip(ranks).all(|(a, b)| is_same(a, b)) {
                out.0.extend_from_within(text.clone());
            } else {
                let start = out.0.len();
                out.text(":");
                write(out, ranks);
                written = (ranks, start..out.0.len());
            }
        });
        self.text("}");
    }

    /// An object with a number for each rank of an instance.
    fn by_rank(&mut self, ranks: &[RankAnswer], value: impl Fn(&RankAnswer) -> u64) {
        self.items("{", ranks.iter(), |out, rank| {
            out.text("\"");
            out.number(rank.dp_rank.0);
            out.text("\":");
            out.number(value(rank));
        });
        self.text("}");
    }

    /// The best of an instance's ranks, and the worst trust.
    fn instance(&mut self, answer: &Answer, ranks: &[RankAnswer]) {
        let longest = |tier: Tier| ranks.iter().map(|rank| rank.tokens[tier]).max().unwrap_or(0);
        for (key, tier) in [("{\"longest_matched\":", Tier::External), (",\"gpu\":", Tier::Device)] {
            self.text(key);
            self.number(longest(tier));
        }
        self.text(",\"dp\":");
        self.by_rank(ranks, |rank| rank.tokens[Tier::Device]);
        for (key, tier) in [(",\"cpu\":", Tier::Host), (",\"disk\":", Tier::Disk)] {
            self.text(key);
            self.number(longest(tier));
        }
        self.text(",\"trust\":\"");
        let trust = ranks.iter().map(|rank| rank.trust).max();
        self.text(trust.expect("a chunk has a rank").as_str());
        self.text("\"");
        if ranks.iter().any(|rank| rank.partial) {
            self.text(",\"partial\":true");
        }
        let shared = answer.shared_matches(ranks);
        if !shared.is_empty() {
            self.items(",\"shared_caches\":{", shared.into_iter(), |out, (cache, tokens)| {
                out.text(cache.json_key());
                out.text(":");
                out.number(tokens);
            });
            self.text("}");
        }
        self.text("}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flash_indexer_core::{DpRank, PerTier};
    use flash_indexer_registry::{NamedRank, QueryOptions, StoreAnswer};
    use flash_indexer_types::{InstanceId, Trust};
    use proptest::prelude::*;
    use serde::Serialize;
    use serde_json::Value;

    use super::*;

    type ByRank<T> = BTreeMap<u32, T>;

    /// The same response, built from maps and written by `serde_json`.
    #[derive(Serialize, Default)]
    struct Expected {
        scores: BTreeMap<String, ByRank<u64>>,
        frequencies: Vec<u32>,
        tree_sizes: BTreeMap<String, ByRank<usize>>,
        instances: BTreeMap<String, InstanceScores>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor_tokens: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        store: Option<&'static str>,
    }

    #[derive(Serialize)]
    struct InstanceScores {
        longest_matched: u64,
        gpu: u64,
        dp: ByRank<u64>,
        cpu: u64,
        disk: u64,
        trust: Trust,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        partial: bool,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        shared_caches: BTreeMap<String, u64>,
    }

    impl Expected {
        fn of(ranks: &[NamedRank], frequencies: &[u32], store: StoreAnswer) -> Self {
            let mut response = Self { frequencies: frequencies.to_vec(), store: store.as_str(), ..Self::default() };
            for rank in ranks {
                let (key, tokens) = (rank.instance.as_key(), rank.tokens);
                let device = tokens[Tier::Device];
                response.scores.entry(key.to_owned()).or_default().insert(rank.dp_rank.0, device);
                response.tree_sizes.entry(key.to_owned()).or_default().insert(rank.dp_rank.0, rank.blocks_held);
                let new = InstanceScores {
                    longest_matched: 0,
                    gpu: 0,
                    dp: ByRank::new(),
                    cpu: 0,
                    disk: 0,
                    trust: rank.trust,
                    partial: false,
                    shared_caches: BTreeMap::new(),
                };
                let instance = response.instances.entry(key.to_owned()).or_insert(new);
                instance.longest_matched = instance.longest_matched.max(tokens[Tier::External]);
                instance.gpu = instance.gpu.max(device);
                instance.dp.insert(rank.dp_rank.0, device);
                instance.cpu = instance.cpu.max(tokens[Tier::Host]);
                instance.disk = instance.disk.max(tokens[Tier::Disk]);
                instance.trust = instance.trust.max(rank.trust);
                instance.partial |= rank.partial;
                for (cache, tokens) in &rank.shared {
                    let known = instance.shared_caches.entry(cache.as_key().to_owned()).or_default();
                    *known = (*known).max(*tokens);
                }
            }
            response
        }
    }

    fn rank() -> impl Strategy<Value = NamedRank> {
        let names = ["7", "11", "gpu-1", "\"quoted\\", "täg", "a/b:0"];
        let name = prop::sample::select(names.to_vec()).prop_map(|name| InstanceId::parse(name).expect("a name"));
        let trust = prop_oneof![6 => Just(Trust::Exact), 1 => Just(Trust::Cold), 1 => Just(Trust::Degraded)];
        // Neighbours are often equal, or differ in one field.
        let tokens = prop::array::uniform4(prop_oneof![8 => Just(0), 1 => any::<u64>()]).prop_map(PerTier);
        let cache = prop::sample::select(vec!["node:a", "node:\"b\"", "pool:c"]);
        let cache = cache.prop_map(|name| InstanceId::parse(name).expect("a name"));
        let shared = prop_oneof![8 => Just(Vec::new()), 1 => prop::collection::vec((cache, any::<u64>()), 0..3)];
        (name, 0..2_u32, tokens, any::<u32>(), trust, prop::bool::weighted(0.2), shared).prop_map(
            |(instance, dp_rank, tokens, blocks_held, trust, partial, shared)| {
                let (dp_rank, blocks_held) = (DpRank(dp_rank), blocks_held as usize);
                NamedRank { instance, dp_rank, tokens, blocks_held, trust, partial, shared }
            },
        )
    }

    proptest! {
        #[test]
        fn the_response_equals_the_one_written_from_maps(
            ranks in prop::collection::vec(rank(), 0..20),
            frequencies in prop::collection::vec(any::<u32>(), 0..4),
            store in prop::sample::select(vec![StoreAnswer::None, StoreAnswer::Included, StoreAnswer::Unavailable]),
            cursor in prop::option::of(any::<(u64, u64)>()),
        ) {
            let by_name: BTreeMap<_, _> = ranks.into_iter().map(|it| ((it.instance.clone(), it.dp_rank), it)).collect();
            let ranks: Vec<NamedRank> = by_name.into_values().collect();
            let mut expected = Expected::of(&ranks, &frequencies, store);
            expected.cursor = cursor.map(|(cursor, _)| cursor.to_string());
            expected.cursor_tokens = cursor.map(|(_, tokens)| tokens);
            let mut answer = Answer::of(ranks, QueryOptions::default());
            (answer.frequencies, answer.store) = (frequencies, store);
            answer.cursor = cursor.map(|(cursor, tokens)| AnswerCursor { cursor, tokens });
            let written: Value = serde_json::from_slice(&json(&answer)).expect("it is JSON");
            prop_assert_eq!(written, serde_json::to_value(&expected).expect("it is JSON"));
        }
    }
}
