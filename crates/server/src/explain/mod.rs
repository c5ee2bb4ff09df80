//! Why the index answers as it does: where each rank's match ends, and why there.
//!
//! [`walk`] follows a prompt through what one rank holds, [`past`] orders what is remembered of the
//! model ([`history`]), and [`reason`] draws the conclusion. None of it knows sockets, clocks or HTTP.

mod departures;
mod history;
mod past;
mod reason;
mod spaces;
mod walk;

use flash_indexer_core::{BlockEvent, DpRank, LocalHash, PerTier, WorkerRank};

pub(crate) use self::departures::{Departure, Departures};
pub(crate) use self::history::{ClearCause, History};
pub(crate) use self::past::Removal;
pub(crate) use self::reason::{Elsewhere, End, Reason};
pub(crate) use self::spaces::SeenSpaces;

use self::past::Past;
use self::reason::{Asked, ends};
use self::walk::{Names, Walk};
use crate::ingest::Trust;
use crate::instance::InstanceId;

/// Where one rank's match ends.
#[derive(Debug, Clone)]
pub(crate) struct RankExplanation {
    pub(crate) instance: InstanceId,
    pub(crate) dp_rank: DpRank,
    pub(crate) trust: Trust,
    /// The last thing that went wrong with what feeds the rank.
    pub(crate) last_error: Option<String>,
    /// Distinct blocks that the rank holds of anything.
    pub(crate) blocks_held: usize,
    /// Leading blocks held when a tier and the faster ones are used together.
    pub(crate) blocks: PerTier<usize>,
    /// In device memory and then, if that is further on, altogether.
    pub(crate) ends: Vec<End>,
}

/// A rank, and what is known of it besides what it holds.
pub(crate) struct Subject {
    pub(crate) instance: InstanceId,
    pub(crate) rank: WorkerRank,
    pub(crate) trust: Trust,
    pub(crate) last_error: Option<String>,
    /// Where it holds most of the same tokens under another adapter or salt.
    pub(crate) elsewhere: Option<Elsewhere>,
}

/// Takes in the dumps of ranks one after the other, and then explains.
pub(crate) struct Explainer {
    /// The prompt as the model's engines may have hashed it.
    forms: Vec<Form>,
    walked: Vec<(Subject, Vec<Walk>)>,
    past: Past,
}

struct Form {
    query: Vec<LocalHash>,
    names: Names,
}

impl Explainer {
    pub(crate) fn new(forms: Vec<Vec<LocalHash>>, history: &History) -> Self {
        let past = Past::new(&history.remembered());
        let form = |query: Vec<LocalHash>| {
            let mut names = Names::new();
            past.add_names(&query, &mut names);
            Form { query, names }
        };
        Self { forms: forms.into_iter().map(form).collect(), walked: Vec::new(), past }
    }

    /// A rank that is asked about, and all that it holds. Linear in that; keeps next to nothing of it.
    pub(crate) fn take(&mut self, subject: Subject, dump: &[BlockEvent]) {
        let walks = self.walk(dump);
        self.walked.push((subject, walks));
    }

    /// A rank that is not asked about: it may know the names of blocks that others lack.
    pub(crate) fn learn_names(&mut self, dump: &[BlockEvent]) {
        self.walk(dump);
    }

    fn walk(&mut self, dump: &[BlockEvent]) -> Vec<Walk> {
        self.forms.iter_mut().map(|form| Walk::new(&form.query, dump, &mut form.names)).collect()
    }

    /// Whether some rank's match ends at one of the first `blocks` blocks, and nobody knows its name yet.
    pub(crate) fn lacks_names(&self, blocks: usize) -> bool {
        self.walked.iter().any(|(_, walks)| {
            let mut ends = self.forms.iter().zip(walks).map(|(form, walk)| (form, walk.longest()));
            ends.any(|(form, end)| end < blocks.min(form.query.len()) && form.names.get(end).is_none_or(Vec::is_empty))
        })
    }

    /// The explanations, in the order in which ranks were taken.
    pub(crate) fn explain(mut self) -> Vec<RankExplanation> {
        // A block may follow one whose name only the dumps told.
        for form in &mut self.forms {
            self.past.add_names(&form.query, &mut form.names);
        }
        let Self { forms, walked, past } = self;
        let explained = walked.into_iter().filter_map(|(subject, walks)| {
            // Of several forms the one that goes deepest is the rank's own.
            let (form, walk) = forms.iter().zip(walks).max_by_key(|(_, walk)| walk.longest())?;
            let asked = Asked { query: &form.query, names: &form.names, past: &past };
            let ends = ends(&asked, subject.rank, subject.trust, &walk, subject.elsewhere.as_ref());
            Some(RankExplanation {
                instance: subject.instance,
                dp_rank: subject.rank.dp_rank,
                trust: subject.trust,
                last_error: subject.last_error,
                blocks_held: walk.blocks_held,
                blocks: walk.blocks,
                ends,
            })
        });
        explained.collect()
    }
}
