//! Truncation of a prompt from the left.

/// At most `kept` ids: the ids that the tokenizer added, by position, and the last of the others.
///
/// This equals truncation from the left by the `tokenizers` library, as engines use it: a token that begins the sequence
/// stays. If not even the added ids fit, the result is the last `kept` ids.
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
