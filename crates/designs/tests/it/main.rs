//! Tests of the designs through their public interface. One program, because linking each file separately takes longer than running it.

mod bounds;
mod equivalence;
mod groups;
mod inexact;
mod positional;
mod radix_tree;
#[path = "../../../core/tests/support/mod.rs"]
mod support;
mod threads;
mod wrappers;
