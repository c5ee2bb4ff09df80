//! State of the shared store and of the tokenizer pool as metrics.

mod store_state;
mod tokenization_state;

pub(crate) use self::store_state::StoreState;
pub(crate) use self::tokenization_state::TokenizationState;
pub use self::tokenization_state::described_labels;

use flash_indexer_prompt::tokenize::PoolStatistics;
use flash_indexer_redis::{PublisherId, PublisherReport, StoreReport};
use flash_indexer_telemetry::metrics::StateSection;

/// The metrics of the optional parts of a service without any state, for the documentation.
#[must_use]
pub fn described_sections() -> Vec<Box<dyn StateSection>> {
    let store = StoreReport {
        url: String::new(),
        is_connected: false,
        last_error: String::new(),
        publisher: PublisherId::from_number(0),
        published: PublisherReport::default(),
        task_panics: 0,
    };
    vec![Box::new(TokenizationState(PoolStatistics::default())), Box::new(StoreState(store))]
}
