//! Adapter and salt of an engine's blocks.

use flash_indexer_core::hashing::{HashVariant, Salt};

/// Longest adapter name that is retained, in bytes. Blocks of an adapter with a longer name are rejected.
pub const ADAPTER_NAME_BYTES_MAX: usize = 512;

/// Adapter and salt of some blocks: together they select the hash variant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdapterSalt {
    lora_name: Option<String>,
    salt: Option<Salt>,
}

impl AdapterSalt {
    /// The pair of one adapter and one salt; an empty adapter name counts as none.
    #[must_use]
    pub fn new(lora_name: Option<&str>, salt: Option<Salt>) -> Self {
        let mut pair = Self::default();
        pair.set(lora_name, salt);
        pair
    }

    /// The adapter's name, if there is an adapter.
    #[must_use]
    pub fn lora_name(&self) -> Option<&str> {
        self.lora_name.as_deref()
    }

    /// The hashed salt, if there is a salt.
    #[must_use]
    pub const fn salt(&self) -> Option<Salt> {
        self.salt
    }

    /// The hash variant of the blocks.
    #[must_use]
    pub fn hash_variant(&self) -> HashVariant {
        HashVariant::salted(self.lora_name(), self.salt)
    }

    /// Sets adapter and salt; does not allocate if the adapter is unchanged.
    pub(crate) fn set(&mut self, lora_name: Option<&str>, salt: Option<Salt>) {
        let lora_name = lora_name.filter(|name| !name.is_empty());
        if self.lora_name.as_deref() != lora_name {
            self.lora_name = lora_name.map(str::to_owned);
        }
        self.salt = salt;
    }
}
