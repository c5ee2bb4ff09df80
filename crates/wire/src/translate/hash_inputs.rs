//! Hash inputs of a store's blocks, and the local hashes computed from them.

use std::borrow::Cow;

use flash_indexer_core::LocalHash;
use flash_indexer_core::hashing::{BlockSize, HashVariant, LocalHasher, MultimodalItem};
use xxhash_rust::xxh3::xxh3_64;

use crate::event::{BlockStored, ExtraKey, TokenIds};

/// Inputs of a local hash besides the tokens, for the blocks of one store.
pub(super) struct HashInputs<'a> {
    pub(super) lora: Option<Cow<'a, str>>,
    /// The adapter's name as it appears among a block's keys.
    lora_key: Option<&'a str>,
    /// Salt that this event carries. Later blocks of the sequence inherit it.
    pub(super) salt: Option<&'a str>,
    /// Index of the salt among the first block's extra keys.
    salt_key: Option<usize>,
    keys: &'a [Option<Vec<ExtraKey<'a>>>],
}

impl<'a> HashInputs<'a> {
    pub(super) fn of(event: &'a BlockStored<'a>, lora_by_default: Option<&'a str>) -> Self {
        let keys = event.extra_keys.as_deref().unwrap_or_default();
        let tagged = keys.iter().flatten().flatten().find_map(|key| match *key {
            ExtraKey::Lora(name) => Some(name),
            _ => None,
        });
        let number = event.lora_id.filter(|&id| id != 0);
        let lora = match (event.lora_name.or(tagged), number) {
            (Some(name), _) => Some(name.into()),
            (None, Some(number)) => Some(number.to_string().into()),
            (None, None) => lora_by_default.map(Into::into),
        };
        let salt = event.cache_salt.filter(|salt| !salt.is_empty());
        let mut inputs = Self { lora, lora_key: event.lora_name, salt, salt_key: None, keys };
        if event.parent_block_hash.is_none() {
            inputs.find_salt();
        } else if let Some(skipped) = &event.skipped
            && skipped.parent_block_hash.is_none()
            && !skipped.token_ids.is_empty()
        {
            // The sequence's first block, whose keys have the salt, was not published.
            let keys = skipped.extra_keys.as_deref().unwrap_or_default();
            let mut first = Self { keys, lora: None, ..inputs };
            first.find_salt();
            inputs.salt = first.salt;
        }
        inputs
    }

    /// Finds the salt: the last of the first block's bare texts, after the adapter's name.
    fn find_salt(&mut self) {
        let first = self.keys.first().and_then(Option::as_deref).unwrap_or_default();
        let lora_key = self.lora_key_of(first);
        let found = first.iter().enumerate().rev().find_map(|(at, key)| match *key {
            ExtraKey::Salt(salt) => Some((at, salt)),
            ExtraKey::Text(text) if Some(at) != lora_key => Some((at, text)),
            _ => None,
        });
        if let Some((at, salt)) = found {
            self.salt_key = Some(at);
            self.salt = self.salt.or(Some(salt));
        }
    }

    /// Index of the adapter's name among a block's keys: the first text equal to it. A second equal text is another
    /// key, such as a salt with the adapter's name.
    fn lora_key_of(&self, keys: &[ExtraKey<'_>]) -> Option<usize> {
        let name = self.lora_key?;
        keys.iter().position(|key| *key == ExtraKey::Text(name))
    }

    pub(super) fn local_hashes(
        &self,
        hasher: &mut LocalHasher,
        tokens: &TokenIds,
        block_size: BlockSize,
        variant: HashVariant,
    ) -> Vec<LocalHash> {
        let mut items = Vec::new();
        let mut hash = |block: usize, tokens: &[u32]| {
            self.items(block, &mut items);
            hasher.multimodal(variant, tokens, &items)
        };
        match tokens {
            TokenIds::Plain(tokens) => {
                let blocks = tokens.chunks_exact(block_size.token_count()).enumerate();
                blocks.map(|(block, tokens)| hash(block, tokens)).collect()
            }
            TokenIds::Hashed(hashed) => hashed.local_hashes.clone(),
            TokenIds::Bigrams(pairs) => {
                let mut window = Vec::with_capacity(block_size.token_count() + 1);
                let blocks = pairs.chunks_exact(block_size.token_count()).enumerate();
                let hashes = blocks.map(|(block, pairs)| {
                    window.clear();
                    window.extend(pairs.iter().map(|pair| pair[0]));
                    window.extend(pairs.last().map(|pair| pair[1]));
                    hash(block, &window)
                });
                hashes.collect()
            }
        }
    }

    /// Collects the multimodal items of one block and every other key that is part of its identity.
    fn items(&self, block: usize, items: &mut Vec<MultimodalItem>) {
        items.clear();
        let keys = self.keys.get(block).and_then(Option::as_deref).unwrap_or_default();
        let lora_key = self.lora_key_of(keys);
        for (at, key) in keys.iter().enumerate() {
            let is_salt = block == 0 && self.salt_key == Some(at);
            items.extend(match *key {
                ExtraKey::Text(_) if is_salt || lora_key == Some(at) => None,
                ExtraKey::Text(id) => Some(MultimodalItem { offset: 0, hash: item_hash(id) }),
                ExtraKey::Item { id, offset } => Some(MultimodalItem { offset, hash: item_hash(id) }),
                ExtraKey::Opaque(bytes) => Some(MultimodalItem { offset: 0, hash: xxh3_64(bytes) }),
                ExtraKey::Lora(_) | ExtraKey::Salt(_) => None,
            });
        }
    }
}

/// Hash of an item's identity: the first 64 bits of a hexadecimal digest; any other text is hashed.
fn item_hash(id: &str) -> u64 {
    let digits = id.get(..16).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_else(|| xxh3_64(id.as_bytes()))
}
