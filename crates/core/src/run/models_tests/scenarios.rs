//! One model for each kind of concurrent change. In models runs have room for eight blocks, headers for two holders,
//! and the first edge table for two edges.

use super::{Model, clears, evicts, rank, renames, sequence, stores, stores_as};
use crate::run::RunLimits;
use crate::{BlockEvent, RemovedCopies, Tier};

#[test]
fn a_run_grows() {
    Model::new("abcd", &[stores(1, "", "ab")], &[stores(1, "ab", "cd")]).check();
}

#[test]
fn a_chain_continues_in_another_run() {
    Model::new("abcdefghij", &[stores(1, "", "abcdefg")], &[stores(1, "abcdefg", "hij")]).check();
}

#[test]
fn a_run_is_published_in_a_new_bucket() {
    // No run of this size existed before.
    Model::new("abc", &[stores(1, "", "z")], &[stores(1, "", "abcdefghi")]).check();
}

#[test]
fn a_rank_replaces_the_tail_of_a_run() {
    // Truncation, and then other content at the same positions.
    Model::new("abcd", &[stores(1, "", "abcd")], &[evicts(1, "abcd", 2), stores(1, "ab", "xy")]).check();
    Model::new("abxy", &[stores(1, "", "abcd")], &[evicts(1, "abcd", 2), stores(1, "ab", "xy")]).check();
}

#[test]
fn another_rank_replaces_the_tail_of_a_run() {
    let before = [stores(1, "", "abcd"), stores(2, "", "ab")];
    Model::new("abcd", &before, &[evicts(1, "abcd", 2), stores(2, "ab", "xy")]).check();
    let before = [&before[..], &[evicts(1, "abcd", 2)]].concat();
    Model::new("abcd", &before, &[stores(2, "ab", "xy")]).check();
}

/// A rank continues a chain in the place of another one's last block.
fn model_of_a_moved_tail(query: &str) -> Model {
    Model::new(query, &[stores(1, "", "abc"), stores(2, "", "ab")], &[stores(2, "ab", "x")])
}

#[test]
fn a_tail_moves_to_a_run_of_its_own() {
    model_of_a_moved_tail("abc").check();
}

#[test]
fn another_chain_continues_in_place_of_a_tail() {
    model_of_a_moved_tail("abx").check();
}

#[test]
fn find_top_finds_the_holder_of_a_moved_tail() {
    model_of_a_moved_tail("abc").check_top(2);
}

#[test]
fn a_rank_replaces_a_fingerprinted_section() {
    // Sections have two blocks here: the fingerprints of "ab" and "cd" become stale with "xy".
    Model::new("abcdef", &[stores(1, "", "abcdef")], &[evicts(1, "abcdef", 4), stores(1, "ab", "xyef")]).check();
    Model::new("abxyef", &[stores(1, "", "abcdef")], &[evicts(1, "abcdef", 4), stores(1, "ab", "xyef")]).check();
    // The same block by block.
    Model::new("abxyz", &[stores(1, "", "abx")], &[stores(1, "abx", "y"), stores(1, "abxy", "z")]).check();
}

#[test]
fn a_freed_record_is_reused() {
    // The rank itself stays, so that only the run changes.
    let before = [stores(1, "", "z"), stores(1, "", "ab")];
    Model::new("ab", &before, &[evicts(1, "ab", 2), stores(1, "", "cd")]).check();
    Model::new("cd", &before, &[evicts(1, "ab", 2), stores(1, "", "cd")]).check();
    // Half of the old run's content and half of the new one's.
    Model::new("ad", &before, &[evicts(1, "ab", 2), stores(1, "", "cd")]).check();
}

#[test]
fn a_prefix_returns_in_another_record() {
    let concurrent = [evicts(1, "ab", 2), stores(1, "", "cd"), stores(1, "", "ab")];
    Model::new("ab", &[stores(1, "", "z"), stores(1, "", "ab")], &concurrent).check();
}

#[test]
fn holdings_change_from_inline_to_list_to_array() {
    let two = [stores(1, "", "abc"), stores(2, "", "ab")];
    Model::new("abc", &two, &[stores(3, "", "ab")]).check();
    let others = [stores(4, "", "z"), stores(5, "", "z"), stores(6, "", "z"), stores(3, "", "z")];
    Model::new("abc", &[&two[..], &others].concat(), &[stores(3, "", "ab")]).check();
}

/// "abc" has a full list, which a ninth holder turns into an array. "x" gets the list's memory for its third holder.
fn model_of_reused_list_memory(query: &str) -> Model {
    let others = (1..=9).map(|worker| stores(worker, "", "z"));
    let abc = (1..=8).map(|worker| stores(worker, "", "abc"));
    let x = [stores(1, "", "x"), stores(2, "", "x")];
    let before: Vec<_> = others.chain(abc).chain(x).collect();
    Model::new(query, &before, &[stores(9, "", "a"), stores(3, "", "x")])
}

#[test]
fn freed_list_memory_is_reused() {
    model_of_reused_list_memory("abc").check();
    model_of_reused_list_memory("x").check();
}

#[test]
fn inline_holder_slots_are_reused() {
    let others = [1, 2, 3].map(|worker| stores(worker, "", "z"));
    let before = [&others[..], &[stores(1, "", "a"), stores(2, "", "a")]].concat();
    let concurrent = [evicts(1, "a", 1), stores(3, "", "a"), evicts(2, "a", 1), stores(1, "", "a")];
    Model::new("a", &before, &concurrent).check();
    // The header still contains the ends from before the holdings became an array.
    let abc = [1, 2, 3].map(|worker| stores(worker, "", "abc"));
    let gone = [1, 2, 3].map(|worker| evicts(worker, "abc", 3));
    let before = [&others[..], &abc, &gone, &[stores(3, "", "de")]].concat();
    Model::new("de", &before, &[stores(2, "", "d")]).check();
}

/// "cd" is attached in the middle of "abz".
fn forked() -> Vec<super::Event> {
    vec![stores(2, "", "abz"), stores(1, "", "abcd")]
}

#[test]
fn a_gap_opens_above_a_change() {
    Model::new("abcde", &forked(), &[evicts(1, "ab", 1), stores(1, "abcd", "e")]).check();
    Model::new("abcd", &forked(), &[evicts(1, "ab", 1), evicts(1, "abcd", 1)]).check();
}

#[test]
fn a_rank_holds_a_run_without_its_parent() {
    let before = [forked(), vec![stores(2, "ab", "cd"), evicts(1, "abcd", 2)]].concat();
    let concurrent = [evicts(1, "ab", 1), stores(1, "ab", "cd")];
    Model::new("abcd", &before, &concurrent).check();
}

#[test]
fn a_gap_closes_after_a_change_below() {
    let gap = [forked(), vec![evicts(1, "ab", 1)]].concat();
    Model::new("abcde", &gap, &[stores(1, "abcd", "e"), stores(1, "a", "b")]).check();
    let gap = [forked(), vec![stores(3, "", "a"), stores(3, "ab", "cd")]].concat();
    Model::new("abcde", &gap, &[stores(3, "abcd", "e"), stores(3, "a", "b")]).check();
    let gap = [stores(1, "", "abc"), evicts(1, "ab", 1)];
    Model::new("abcd", &gap, &[stores(1, "abc", "d"), stores(1, "a", "b")]).check();
}

#[test]
fn blocks_behind_a_gap_move_to_waiting() {
    let limits = RunLimits { removed_blocks_max: 0, ..RunLimits::default() };
    Model::new("abcd", &forked(), &[evicts(1, "ab", 1)]).with_limits(limits).check();
}

#[test]
fn a_holder_is_reassigned_to_another_rank() {
    Model::new("a", &[stores(2, "", "az"), stores(1, "", "a")], &[clears(1), stores(3, "", "a")]).check();
}

#[test]
fn a_rank_starts_to_use_another_tier() {
    let host = |parent, blocks| stores_as(1, Tier::Host, parent, blocks, 7);
    Model::new("abc", &[stores(1, "", "ab")], &[host("ab", "c")]).check();
    Model::new("abc", &[stores(1, "", "ab")], &[host("", "ab"), evicts(1, "ab", 1)]).check();
}

#[test]
fn the_edge_table_grows() {
    let before = [stores(1, "", "ab"), stores(1, "", "c")];
    Model::new("ab", &before, &[stores(1, "", "d")]).check();
    Model::new("abc", &before, &[stores(1, "", "d"), evicts(1, "ab", 2)]).check();
    Model::new("d", &before, &[stores(1, "", "d"), evicts(1, "ab", 2)]).check();
    // The second growth moves two edges: during it, the writer removes an edge that was copied already.
    let before = [stores(1, "", "a"), stores(1, "", "b"), stores(1, "", "c"), stores(1, "", "d")];
    Model::new("e", &before, &[stores(1, "", "e"), evicts(1, "a", 1), stores(1, "", "f")]).check();
    Model::new("a", &before, &[stores(1, "", "e"), evicts(1, "a", 1), stores(1, "", "f")]).check();
    // The edge to "cd" exists only in the new table, and rank 1 holds all or one block.
    let before = [stores(2, "", "abz"), stores(1, "", "a"), stores(2, "", "y")];
    Model::new("abcd", &before, &[stores(1, "ab", "cd"), stores(1, "a", "b")]).check();
}

#[test]
fn an_edge_overflows_its_line() {
    // All in one line: the table of two edges has only one line.
    Model::new("c", &[stores(1, "", "a"), stores(1, "", "c")], &[evicts(1, "a", 1), stores(1, "", "e")]).check();
}

#[test]
fn a_block_gets_a_twin() {
    // The twin's edge is before that of the older run.
    let before = [stores(1, "", "x"), stores(1, "", "ab"), stores(2, "", "ab"), evicts(1, "x", 1)];
    let twin = stores_as(1, Tier::Device, "", "a", 9);
    Model::new("ab", &before, std::slice::from_ref(&twin)).check();
    Model::new("ab", &before, &[twin, evicts(1, "ab", 2)]).with_twins(1).check();
}

#[test]
fn a_block_inside_a_run_gets_a_twin() {
    let before = [stores(1, "", "abc"), stores(2, "", "abc")];
    Model::new("abc", &before, &[renames(1, "a", "b"), evicts(1, "abc", 2)]).with_twins(1).check();
}

#[test]
fn a_twin_is_removed() {
    let twin = stores_as(1, Tier::Device, "", "a", 9);
    let removes_twin = (
        rank(1),
        BlockEvent::Removed { tier: Tier::Device, blocks: vec![sequence("a", 9)], copies: RemovedCopies::All },
    );
    let before = [stores(1, "", "ab"), stores(2, "", "ab"), twin.clone()];
    Model::new("ab", &before, &[removes_twin]).with_twins(1).check();
    // The later of the two remains.
    let before = [stores(1, "", "ab"), twin];
    Model::new("ab", &before, &[evicts(1, "ab", 2)]).with_twins(1).check();
}

#[test]
fn a_run_is_truncated_at_a_block_that_has_a_twin() {
    let before = [stores(1, "", "abc"), renames(1, "a", "b")];
    Model::new("abc", &before, &[evicts(1, "abc", 2)]).with_twins(1).check();
}

#[test]
fn find_top_returns_the_deepest_ranks() {
    Model::new("abcde", &forked(), &[evicts(1, "ab", 1), stores(1, "abcd", "e")]).check_top(1);
    Model::new("abcd", &forked(), &[stores(3, "", "abcd"), evicts(1, "abcd", 1)]).check_top(2);
    Model::new("abc", &[stores(1, "", "abc")], &[stores_as(1, Tier::Host, "", "a", 7)]).check_top(2);
    model_of_reused_list_memory("abc").check_top(20);
}
