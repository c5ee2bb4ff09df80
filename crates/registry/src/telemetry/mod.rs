//! Parts of the service whose state is encoded as metrics beside that of the index.

mod store;
mod tokenization;

pub(crate) use self::store::StoreState;
pub(crate) use self::tokenization::TokenizationState;
