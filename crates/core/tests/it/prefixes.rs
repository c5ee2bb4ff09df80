//! A rank's prefixes, looked up one by one, give the answers of the oracle after every step of any stream.

use std::collections::BTreeMap;

use crate::support::Step;
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::prefixes::{HeldPrefixes, Prefix};
use flash_indexer_core::{
    AppliedChanges, BlockEvent, LocalHash, MatchScores, PerTier, PrefixIndex, RankMatch, SequenceHash, Tier, WorkerRank,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// One rank's prefixes, and a copy that is updated only by reported changes.
#[derive(Default)]
struct ReportedPrefixes {
    prefixes: HeldPrefixes,
    copy: BTreeMap<SequenceHash, Tier>,
}

impl ReportedPrefixes {
    fn apply(&mut self, event: &BlockEvent) -> AppliedChanges {
        let mut changed = Vec::new();
        let applied = self.prefixes.apply(event, &mut |prefix: Prefix| changed.push(prefix.hash));
        if *event == BlockEvent::Cleared {
            self.copy.clear();
        }
        for hash in changed {
            match self.prefixes.slowest_tier(hash) {
                Some(tier) => self.copy.insert(hash, tier),
                None => self.copy.remove(&hash),
            };
        }
        applied
    }

    /// The result of a walk over the copy, block by block.
    fn walk(&self, query: &[LocalHash]) -> PerTier<u32> {
        let mut depths = PerTier::default();
        for tier in Tier::ALL {
            let held = |hash: &SequenceHash| self.copy.get(hash).is_some_and(|&slowest| slowest <= tier);
            depths[tier] = sequence_hashes(query).take_while(held).count() as u32;
        }
        depths
    }

    /// The result of the last held prefix alone, which implies all shorter ones.
    fn by_last_held(&self, query: &[LocalHash]) -> PerTier<u32> {
        let mut depths = PerTier::default();
        for (at, hash) in sequence_hashes(query).enumerate() {
            for tier in Tier::ALL {
                if self.copy.get(&hash).is_some_and(|&slowest| slowest <= tier) {
                    depths[tier] = at as u32 + 1;
                }
            }
        }
        depths
    }
}

/// The copy at one moment, and the depth of the query at that moment.
type View = (BTreeMap<SequenceHash, Tier>, PerTier<u32>);

fn answers(
    ranks: &BTreeMap<WorkerRank, ReportedPrefixes>,
    of: impl Fn(&ReportedPrefixes) -> PerTier<u32>,
) -> MatchScores {
    let ranks = ranks.iter().map(|(&rank, reported)| RankMatch { rank, blocks: of(reported) });
    MatchScores { ranks: ranks.filter(|found| found.longest() > 0).collect() }
}

fn check(steps: &[Step], queries: &[Vec<LocalHash>]) -> Result<(), TestCaseError> {
    let (mut ranks, mut oracle) = (BTreeMap::<WorkerRank, ReportedPrefixes>::new(), Oracle::default());
    for step in steps {
        match step {
            Step::Event(rank, event) => {
                let applied = ranks.entry(*rank).or_default().apply(event);
                prop_assert_eq!(AppliedChanges { waiting: 0, ..applied }, oracle.apply(*rank, event));
            }
            Step::ClearRank(rank) => {
                ranks.remove(rank);
                oracle.clear_rank(*rank);
            }
            Step::RemoveWorker(worker) => {
                ranks.retain(|rank, _| rank.worker != *worker);
                oracle.remove_worker(*worker);
            }
        }
        for query in queries {
            let expected = oracle.find(query).sorted();
            prop_assert_eq!(&answers(&ranks, |reported| reported.walk(query)), &expected, "{:?}", query);
            prop_assert_eq!(
                &answers(&ranks, |reported| reported.by_last_held(query)),
                &expected,
                "closed under prefixes"
            );
        }
        for (rank, reported) in &ranks {
            let mut all: Vec<SequenceHash> = reported.prefixes.iter().map(|prefix| prefix.hash).collect();
            all.sort_unstable();
            prop_assert_eq!(all, reported.copy.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(reported.prefixes.blocks(), oracle.size(*rank).blocks);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::support::cases(3000))]

    #[test]
    fn prefixes_give_the_answers_of_the_oracle(steps in crate::support::stream(40), queries in vec(crate::support::path(), 12)) {
        check(&steps, &queries)?;
    }

    /// A reader that sees each prefix as of a different moment finds, in each tier, at most the depth that was true
    /// at one of the moments.
    #[test]
    fn a_mixed_view_finds_at_most_what_was_true_at_some_moment(
        steps in crate::support::stream(40),
        query in crate::support::path(),
        moments in vec(any::<prop::sample::Index>(), 7),
    ) {
        let mut views: BTreeMap<WorkerRank, Vec<View>> = BTreeMap::new();
        let mut ranks = BTreeMap::<WorkerRank, ReportedPrefixes>::new();
        for step in &steps {
            let Step::Event(rank, event) = step else { continue };
            let reported = ranks.entry(*rank).or_default();
            reported.apply(event);
            views.entry(*rank).or_default().push((reported.copy.clone(), reported.walk(&query)));
        }
        for views in views.values() {
            for tier in Tier::ALL {
                let seen = |at: usize, hash: SequenceHash| {
                    let (view, _) = moments[at].get(views);
                    view.get(&hash).is_some_and(|&slowest| slowest <= tier)
                };
                let prefixes = sequence_hashes(&query).enumerate();
                let deepest = prefixes.filter(|&(at, hash)| seen(at, hash)).map(|(at, _)| at as u32 + 1).max();
                prop_assert!(views.iter().any(|(_, depths)| depths[tier] >= deepest.unwrap_or(0)));
            }
        }
    }
}
