//! What keeps an engine's content apart besides its tokens.

use flash_indexer_core::hashing::{HashVariant, Salt};

/// Longest adapter name that is retained, in bytes. Blocks of an adapter with a longer name are rejected.
pub const ADAPTER_NAME_BYTES_MAX: usize = 512;

/// The adapter and the salt of some blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdapterSalt {
    lora_name: Option<String>,
    salt: Option<Salt>,
}

impl AdapterSalt {
    /// The space of one adapter and one salt; empty names are none.
    #[must_use]
    pub fn new(lora_name: Option<&str>, salt: Option<Salt>) -> Self {
        let mut space = Self::default();
        space.set(lora_name, salt);
        space
    }

    /// The adapter, if there is one.
    #[must_use]
    pub fn lora_name(&self) -> Option<&str> {
        self.lora_name.as_deref()
    }

    /// The salt as far as it is known: hashed.
    #[must_use]
    pub const fn salt(&self) -> Option<Salt> {
        self.salt
    }

    /// What the space's blocks are hashed with.
    #[must_use]
    pub fn hash_variant(&self) -> HashVariant {
        HashVariant::salted(self.lora_name(), self.salt)
    }

    /// Becomes the space of this adapter and salt; allocates nothing when it is that already.
    pub(crate) fn set(&mut self, lora_name: Option<&str>, salt: Option<Salt>) {
        let lora_name = lora_name.filter(|name| !name.is_empty());
        if self.lora_name.as_deref() != lora_name {
            self.lora_name = lora_name.map(str::to_owned);
        }
        self.salt = salt;
    }
}
