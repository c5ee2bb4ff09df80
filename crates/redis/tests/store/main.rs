//! Replicas on real Redis servers: what they find is what the ranks hold, and nothing wrong is found while something
//! dies.

mod access;
mod outages;
mod publishing;
mod support;
mod trace;
