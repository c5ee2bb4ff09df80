//! Explanations of one prompt for the ranks of a model.

use flash_indexer_core::groups::Cut;
use flash_indexer_core::{BlockEvent, DpRank, LocalHash, PerTier, Tier};
use flash_indexer_types::{InstanceId, Trust};

use crate::history::History;
use crate::matched::ExplainedMatch;
use crate::reason::{End, ExplainContext, ends};
use crate::subject::Subject;
use crate::timeline::BlockTimeline;
use crate::walk::{KnownHashes, Walk};

/// The end of one rank's match.
#[derive(Debug, Clone)]
pub struct RankExplanation {
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Trust in the rank.
    pub trust: Trust,
    /// Last error of the stream of the rank.
    pub last_error: Option<String>,
    /// Distinct blocks that the rank holds, of any prompt.
    pub blocks_held: usize,
    /// Usable leading blocks when a tier and the faster ones are used together.
    pub blocks: PerTier<usize>,
    /// The end in device memory. If all tiers together match more blocks, their end follows.
    pub ends: Vec<End>,
}

/// Explains the matches of one prompt. Reads the dump of one rank at a time and keeps no dump.
pub struct Explainer {
    /// The prompt in each hash variant that the model's engines use.
    variants: Vec<VariantQuery>,
    subjects: Vec<(Subject, Vec<ExplainedMatch>)>,
    timeline: BlockTimeline,
}

/// The prompt in one hash variant.
struct VariantQuery {
    query: Vec<LocalHash>,
    known_hashes: KnownHashes,
}

impl Explainer {
    /// Creates an explainer of a prompt, given as local hashes in each hash variant that the model's engines use.
    pub fn new(variants: Vec<Vec<LocalHash>>, history: &History) -> Self {
        let timeline = BlockTimeline::new(&history.snapshot());
        let variant_query = |query: Vec<LocalHash>| {
            let mut known_hashes = KnownHashes::new();
            timeline.add_sequence_hashes(&query, &mut known_hashes);
            VariantQuery { query, known_hashes }
        };
        Self { variants: variants.into_iter().map(variant_query).collect(), subjects: Vec::new(), timeline }
    }

    /// Adds a rank to explain, given all blocks that its primary cache group holds. Linear in the dump; keeps only the
    /// match.
    ///
    /// `cut(query, blocks, tier)` returns how the secondary cache groups shorten a match of `blocks` blocks in the
    /// tiers up to `tier`.
    pub fn add_rank(
        &mut self,
        subject: Subject,
        dump: &[BlockEvent],
        cut: impl Fn(&[LocalHash], u32, Tier) -> Option<Cut>,
    ) {
        let walks = self.walk(dump);
        let matches = self.variants.iter().zip(walks);
        let matches = matches.map(|(variant, walk)| ExplainedMatch::new(walk, &variant.query, &cut)).collect();
        self.subjects.push((subject, matches));
    }

    /// Collects sequence hashes of the prompt's blocks from a rank that is not explained itself.
    pub fn collect_sequence_hashes(&mut self, dump: &[BlockEvent]) {
        self.walk(dump);
    }

    fn walk(&mut self, dump: &[BlockEvent]) -> Vec<Walk> {
        self.variants.iter_mut().map(|variant| Walk::new(&variant.query, dump, &mut variant.known_hashes)).collect()
    }

    /// Whether a match ends within the first `blocks` blocks, at a block whose sequence hash is not known yet.
    pub fn is_missing_sequence_hash(&self, blocks: usize) -> bool {
        self.subjects.iter().any(|(_, matches)| {
            let mut ends =
                self.variants.iter().zip(matches).map(|(variant, matched)| (variant, matched.walk.longest()));
            ends.any(|(variant, end)| {
                let is_unknown = variant.known_hashes.get(end).is_none_or(Vec::is_empty);
                end < blocks.min(variant.query.len()) && is_unknown
            })
        })
    }

    /// The explanations, in the order in which ranks were added.
    pub fn explain(mut self) -> Vec<RankExplanation> {
        // The history may continue a chain whose parent only a dump has named.
        for variant in &mut self.variants {
            self.timeline.add_sequence_hashes(&variant.query, &mut variant.known_hashes);
        }
        let Self { variants, subjects, timeline } = self;
        let explained = subjects.into_iter().filter_map(|(subject, matches)| {
            // The variant with the longest match is the one that the rank uses.
            let length = |(_, matched): &(_, ExplainedMatch)| (matched.longest(), matched.walk.longest());
            let (variant, matched) = variants.iter().zip(matches).max_by_key(length)?;
            let VariantQuery { query, known_hashes } = variant;
            let ends = ends(&ExplainContext { query, known_hashes, timeline: &timeline }, &subject, &matched);
            Some(RankExplanation {
                instance: subject.instance,
                dp_rank: subject.rank.dp_rank,
                trust: subject.trust,
                last_error: subject.last_error,
                blocks_held: matched.walk.blocks_held,
                blocks: matched.usable(),
                ends,
            })
        });
        explained.collect()
    }
}
