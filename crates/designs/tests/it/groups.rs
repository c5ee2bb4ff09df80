//! Ranks with several cache groups are answered by the same rule with every index of the primary group.

#[path = "../../../core/tests/support/groups.rs"]
mod checks;

use flash_indexer_designs::Design;
use proptest::prelude::*;

proptest! {
    #![proptest_config(crate::support::cases(300))]

    #[test]
    fn groups_over_a_radix_tree_equal_the_brute_force_rule(
        steps in checks::consistent_stream(),
        queries in checks::queries(),
    ) {
        checks::check(|| Design::RadixTree.build(), &steps, &queries)?;
    }
}
