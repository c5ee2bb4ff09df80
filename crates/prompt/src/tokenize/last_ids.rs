//! The end of a prompt.

/// At most `kept` ids: those that the tokenizer has added, by their places, and of the others the last.
///
/// This is truncation from the left as engines have the library do it. It is not the last `kept` of all when a token begins
/// the sequence; when not even the added ones fit, it is.
pub(super) fn last_ids(ids: &[u32], is_added: impl Fn(usize) -> bool, kept: usize) -> Vec<u32> {
    let surplus = ids.len().saturating_sub(kept);
    let content = (0..ids.len()).filter(|at| !is_added(*at)).count();
    if surplus > content {
        return ids[surplus..].to_vec();
    }
    let mut left_out = 0;
    let mut is_kept = |at: usize| {
        let is_surplus = left_out < surplus && !is_added(at);
        left_out += usize::from(is_surplus);
        !is_surplus
    };
    ids.iter().enumerate().filter(|(at, _)| is_kept(*at)).map(|(_, id)| *id).collect()
}
