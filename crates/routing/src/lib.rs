//! State from which scores and picks are computed: reports of routers, and their weights.
//!
//! Every table has a limit. Callers pass the time to all tables except [`Predictions`], which reads the clock.
//!
//! | file | role |
//! |---|---|
//! | `pick.rs` | the choice of an instance, by its held blocks and its load |
//! | `in_flight.rs` | requests in flight: the load of each instance |
//! | `predictions.rs`, `predicted_blocks.rs` | blocks that routers predict, with and without the lock |
//! | `routed_blocks.rs` | blocks that an engine without events is assumed to hold |
//! | `recent_prompts.rs` | the last prompts as tokens, for the text of prefixes |
//! | `recent_uses.rs` | recent uses of blocks by queries |
//! | `tier_weights.rs` | weights of blocks by tier |
//! | `instance_filter.rs` | the pods that a request scores |

mod in_flight;
mod instance_filter;
mod pick;
mod predicted_blocks;
mod predictions;
mod recent_prompts;
mod recent_uses;
mod routed_blocks;
mod tier_weights;

pub use in_flight::{InFlight, InFlightRequest, InstanceLoad, RequestKey};
pub use instance_filter::InstanceFilter;
pub use pick::{Candidate, CostWeights, PickOptions, WEIGHT_MAX, pick};
pub use predicted_blocks::{PredictedBlocks, RecordedPrediction};
pub use predictions::{PredictionView, Predictions};
pub use recent_prompts::{PROMPTS_MAX, RecentPrompt, RecentPrompts};
pub use recent_uses::{RecentUses, Uses};
pub use routed_blocks::{RecordedPrompt, RoutedBlocks};
pub use tier_weights::{TierWeights, TierWeightsError};
