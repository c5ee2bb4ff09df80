//! State of the shared store and of the tokenizer pool as metrics.

mod store_state;
mod tokenization_state;

pub(crate) use self::store_state::StoreState;
pub(crate) use self::tokenization_state::TokenizationState;
