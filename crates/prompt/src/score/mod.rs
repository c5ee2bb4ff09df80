//! Scorers: how much of a prompt's work a pod would be spared.
//!
//! A pod is an engine instance. Its score is the sum, over the longest consecutive prefix of the prompt's blocks that it
//! holds, of the weight of the fastest tier that holds each block. Of several data-parallel ranks the best one counts: a
//! request runs on one of them, and who routes to pods leaves the choice of the rank to the engine or makes it by the same
//! scores.

mod pods;
mod predicted;
mod weights;

pub use pods::PodFilter;
pub use predicted::{Predicted, PredictedBlocks, PredictionLimits};
pub use weights::{TierWeights, TierWeightsError};
