//! A set of ranks as a bitset over their slots.

/// Words stored inline, without an allocation: 128 slots.
const INLINE_WORDS: usize = 2;
const WORD_BITS: u32 = u64::BITS;

/// A set of rank slots. Slots below 128 are stored inline. The first higher slot moves the set to an allocated array of bits,
/// which grows to the highest slot.
#[derive(Debug, Clone)]
pub(super) enum RankSet {
    Inline([u64; INLINE_WORDS]),
    Allocated(Vec<u64>),
}

impl Default for RankSet {
    fn default() -> Self {
        Self::Inline([0; INLINE_WORDS])
    }
}

impl RankSet {
    pub(super) fn insert(&mut self, slot: u32) {
        let (word, bit) = word_and_bit(slot);
        self.words_mut(word + 1)[word] |= bit;
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let (word, bit) = word_and_bit(slot);
        if let Some(word) = self.words_mut(0).get_mut(word) {
            *word &= !bit;
        }
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        let (word, bit) = word_and_bit(slot);
        self.words().get(word).is_some_and(|word| word & bit != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words().iter().all(|&word| word == 0)
    }

    pub(super) fn is_subset_of(&self, other: &Self) -> bool {
        let others = other.words().iter().copied().chain(std::iter::repeat(0));
        self.words().iter().zip(others).all(|(word, other)| word & !other == 0)
    }

    /// The highest slot in the set.
    pub(super) fn last(&self) -> Option<u32> {
        let (at, word) = self.words().iter().enumerate().rfind(|&(_, &word)| word != 0)?;
        Some(at as u32 * WORD_BITS + WORD_BITS - 1 - word.leading_zeros())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.words().iter().zip(0..).flat_map(|(&word, at)| bits(word).map(move |bit| at * WORD_BITS + bit))
    }

    /// Adds every slot of `other`.
    pub(super) fn union_with(&mut self, other: &Self) {
        let others = other.words();
        for (word, other) in self.words_mut(others.len()).iter_mut().zip(others) {
            *word |= other;
        }
    }

    /// Removes the slots that are not in `other` and returns them.
    pub(super) fn split_off_difference(&mut self, other: &Self) -> Self {
        let mut removed = self.clone();
        let others = other.words().iter().copied().chain(std::iter::repeat(0));
        for ((word, removed), other) in self.words_mut(0).iter_mut().zip(removed.words_mut(0)).zip(others) {
            *word &= other;
            *removed &= !other;
        }
        removed
    }

    /// Removes the slots that are in `other` and returns them.
    pub(super) fn split_off_intersection(&mut self, other: &Self) -> Self {
        let difference = self.split_off_difference(other);
        std::mem::replace(self, difference)
    }

    fn words(&self) -> &[u64] {
        match self {
            Self::Inline(words) => words,
            Self::Allocated(words) => words,
        }
    }

    /// The words, at least `count` of them.
    fn words_mut(&mut self, count: usize) -> &mut [u64] {
        if let Self::Inline(words) = self
            && count > INLINE_WORDS
        {
            *self = Self::Allocated(words.to_vec());
        }
        match self {
            Self::Inline(words) => words,
            Self::Allocated(words) => {
                if words.len() < count {
                    words.resize(count, 0);
                }
                words
            }
        }
    }
}

/// The index of a slot's word, and the slot's bit in that word.
fn word_and_bit(slot: u32) -> (usize, u64) {
    ((slot / WORD_BITS) as usize, 1 << (slot % WORD_BITS))
}

fn bits(word: u64) -> impl Iterator<Item = u32> {
    let not_zero = |word| (word != 0).then_some(word);
    std::iter::successors(not_zero(word), move |word| not_zero(word & (word - 1))).map(u64::trailing_zeros)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;

    fn set_of(slots: &BTreeSet<u32>) -> RankSet {
        let mut set = RankSet::default();
        slots.iter().for_each(|&slot| set.insert(slot));
        set
    }

    fn slots() -> impl Strategy<Value = BTreeSet<u32>> {
        prop_oneof![btree_set(0..128u32, 0..20), btree_set(0..1000u32, 0..20)]
    }

    fn listed(set: &RankSet) -> Vec<u32> {
        set.iter().collect()
    }

    proptest! {
        #[test]
        fn a_rank_set_behaves_as_an_ordered_set(left in slots(), right in slots(), removed in slots()) {
            let (mut a, b) = (set_of(&left), set_of(&right));
            prop_assert_eq!(listed(&a), Vec::from_iter(left.iter().copied()));
            prop_assert_eq!(a.last(), left.last().copied());
            prop_assert_eq!(a.is_subset_of(&b), left.is_subset(&right));
            prop_assert!((0..1100).all(|slot| a.contains(slot) == left.contains(&slot)));

            let mut united = a.clone();
            united.union_with(&b);
            prop_assert_eq!(listed(&united), Vec::from_iter(left.union(&right).copied()));

            let mut rest = a.clone();
            prop_assert_eq!(listed(&rest.split_off_intersection(&b)), Vec::from_iter(left.intersection(&right).copied()));
            prop_assert_eq!(listed(&rest), Vec::from_iter(left.difference(&right).copied()));

            let outside = a.split_off_difference(&b);
            prop_assert_eq!(listed(&a), Vec::from_iter(left.intersection(&right).copied()));
            prop_assert_eq!(listed(&outside), Vec::from_iter(left.difference(&right).copied()));

            removed.iter().for_each(|&slot| united.remove(slot));
            let left_over = left.union(&right).filter(|slot| !removed.contains(slot)).copied();
            prop_assert_eq!(listed(&united), Vec::from_iter(left_over));
            left.union(&right).for_each(|&slot| united.remove(slot));
            prop_assert!(united.is_empty());
            prop_assert_eq!(united.last(), None);
        }
    }
}
