//! Replicas on real Redis servers: what they find is what the ranks hold, and nothing wrong is found while something
//! dies.

mod access;
mod clusters;
mod invalid_values;
mod outages;
mod pacing;
mod publishing;
mod support;
mod trace;
