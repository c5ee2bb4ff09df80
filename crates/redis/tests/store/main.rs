//! Replicas on real Redis servers: queries find the prefixes that ranks hold, and never more while servers or replicas
//! fail.

mod access;
mod clusters;
mod invalid_values;
mod outages;
mod pacing;
mod publishing;
mod slow_links;
mod support;
mod trace;
