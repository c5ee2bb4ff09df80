//! Answer to a query by tier, as Dynamo's selection service reads it.

use flash_indexer_api::{DeviceMatches, StorageTier, TierExtensions, TieredMatches, TieredQueryResponse, WorkerRankId};
use flash_indexer_core::{PerTier, Tier};
use flash_indexer_registry::Answer;

/// The matches of an answer in blocks. This form has no name for a rank whose instance id is a text.
pub(super) fn tiered_response(answer: &Answer) -> TieredQueryResponse {
    let mut device = DeviceMatches { scores: Vec::new(), frequencies: answer.frequencies.clone() };
    let mut extensions = PerTier::<Vec<(WorkerRankId, u32)>>::default();
    let mut omitted_ranks = 0;
    for rank in answer.ranks.iter().filter(|rank| rank.tokens[Tier::External] > 0) {
        let Some(worker_id) = answer.name(rank).id().as_number() else {
            omitted_ranks += 1;
            continue;
        };
        let id = WorkerRankId { worker_id, dp_rank: rank.dp_rank.0 };
        let mut faster = 0;
        for tier in Tier::ALL {
            let blocks = answer.blocks(rank.tokens[tier]);
            if blocks > faster {
                extensions[tier].push((id, blocks - faster));
                faster = blocks;
            }
        }
    }
    device.scores = std::mem::take(&mut extensions[Tier::Device]);
    let lower = [Tier::Host, Tier::Disk, Tier::External].into_iter();
    let lower_tier = lower
        .map(|tier| (StorageTier::from(tier), TierExtensions { hits: std::mem::take(&mut extensions[tier]) }))
        .filter(|(_, extensions)| !extensions.hits.is_empty())
        .collect();
    TieredQueryResponse { block_size: answer.block_tokens, tiered: TieredMatches { device, lower_tier }, omitted_ranks }
}
