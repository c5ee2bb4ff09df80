//! Why the index answers as it does: where each rank's match ends, and why there.
//!
//! [`walk`] follows a prompt through what one rank holds, [`found`] adds what its further cache groups lack,
//! [`past`] orders what is remembered of the model ([`history`]), [`loss`] replays how a block went, [`doubt`] says what is missing after that, and [`reason`] draws the conclusion. None of it
//! knows sockets, clocks or HTTP.

mod history;
mod loss;
mod matched;
#[cfg(test)]
mod model;
mod reason;
mod timeline;
mod tombstones;
mod variants;
mod walk;

use flash_indexer_core::groups::Cut;
use flash_indexer_core::{BlockEvent, DpRank, LocalHash, PerTier, Tier, WorkerRank};

pub use self::history::History;
pub use self::loss::{Clear, Loss, Removal};
pub use self::matched::{GroupShortfall, LimitingGroup, MissingGroupBlock};
pub use self::reason::{End, HeldUnderOtherVariants, OtherVariant, Reason};
pub use self::tombstones::{Tombstone, Tombstones};
pub use self::variants::SeenVariants;
pub use flash_indexer_types::Doubt;

use self::matched::ExplainedMatch;
use self::reason::{ExplainContext, ends};
use self::timeline::BlockTimeline;
use self::walk::{Names, Walk};
use flash_indexer_types::InstanceId;
use flash_indexer_types::Trust;

/// Where one rank's match ends.
#[derive(Debug, Clone)]
pub struct RankExplanation {
    /// The instance.
    pub instance: InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
    /// Trust in the rank.
    pub trust: Trust,
    /// The last thing that went wrong with what feeds the rank.
    pub last_error: Option<String>,
    /// Distinct blocks that the rank holds of anything.
    pub blocks_held: usize,
    /// Leading blocks that can be used when a tier and the faster ones are used together.
    pub blocks: PerTier<usize>,
    /// In device memory and then, if that is further on, altogether.
    pub ends: Vec<End>,
}

/// A rank, and what is known of it besides what it holds.
pub struct Subject {
    /// The instance.
    pub instance: InstanceId,
    /// The rank as the index numbers it.
    pub rank: WorkerRank,
    /// Trust in the rank.
    pub trust: Trust,
    /// Last error of the stream of the rank.
    pub last_error: Option<String>,
    /// What is missing of the rank, and from where on.
    pub doubt: Option<Doubt>,
    /// Whether the rank holds more than its index has room for.
    pub is_partial: bool,
    /// Where most of the same tokens is held under another adapter or salt.
    pub elsewhere: HeldUnderOtherVariants,
}

/// Takes in the dumps of ranks one after the other, and then explains.
pub struct Explainer {
    /// The prompt as the model's engines may have hashed it.
    forms: Vec<VariantQuery>,
    found: Vec<(Subject, Vec<ExplainedMatch>)>,
    past: BlockTimeline,
}

struct VariantQuery {
    query: Vec<LocalHash>,
    names: Names,
}

impl Explainer {
    /// An explainer of a prompt, given as the hash variants that engines use.
    pub fn new(forms: Vec<Vec<LocalHash>>, history: &History) -> Self {
        let past = BlockTimeline::new(&history.remembered());
        let form = |query: Vec<LocalHash>| {
            let mut names = Names::new();
            past.add_names(&query, &mut names);
            VariantQuery { query, names }
        };
        Self { forms: forms.into_iter().map(form).collect(), found: Vec::new(), past }
    }

    /// A rank that is asked about, and all that its indexed group holds. Linear in that; keeps next to nothing of it.
    /// `cut` says where the further groups cut off so many leading blocks of a query in tiers up to one.
    pub fn take(
        &mut self,
        subject: Subject,
        dump: &[BlockEvent],
        cut: impl Fn(&[LocalHash], u32, Tier) -> Option<Cut>,
    ) {
        let walks = self.walk(dump);
        let found = self.forms.iter().zip(walks).map(|(form, walk)| ExplainedMatch::new(walk, &form.query, &cut));
        let found = found.collect();
        self.found.push((subject, found));
    }

    /// A rank that is not asked about: it may know the names of blocks that others lack.
    pub fn learn_names(&mut self, dump: &[BlockEvent]) {
        self.walk(dump);
    }

    fn walk(&mut self, dump: &[BlockEvent]) -> Vec<Walk> {
        self.forms.iter_mut().map(|form| Walk::new(&form.query, dump, &mut form.names)).collect()
    }

    /// Whether some rank's match ends at one of the first `blocks` blocks, and nobody knows its name yet.
    pub fn lacks_names(&self, blocks: usize) -> bool {
        self.found.iter().any(|(_, found)| {
            let mut ends = self.forms.iter().zip(found).map(|(form, found)| (form, found.walk.longest()));
            ends.any(|(form, end)| end < blocks.min(form.query.len()) && form.names.get(end).is_none_or(Vec::is_empty))
        })
    }

    /// The explanations, in the order in which ranks were taken.
    pub fn explain(mut self) -> Vec<RankExplanation> {
        // A block may follow one whose name only the dumps told.
        for form in &mut self.forms {
            self.past.add_names(&form.query, &mut form.names);
        }
        let Self { forms, found, past } = self;
        let explained = found.into_iter().filter_map(|(subject, found)| {
            // Of several forms the one that goes deepest is the rank's own.
            let deepest = |(_, found): &(_, ExplainedMatch)| (found.longest(), found.walk.longest());
            let (form, found) = forms.iter().zip(found).max_by_key(deepest)?;
            let asked = ExplainContext { query: &form.query, names: &form.names, past: &past };
            let ends = ends(&asked, &subject, &found);
            Some(RankExplanation {
                instance: subject.instance,
                dp_rank: subject.rank.dp_rank,
                trust: subject.trust,
                last_error: subject.last_error,
                blocks_held: found.walk.blocks_held,
                blocks: found.usable(),
                ends,
            })
        });
        explained.collect()
    }
}
