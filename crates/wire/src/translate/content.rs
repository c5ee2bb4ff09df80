//! What a store's blocks contain, besides and with their tokens.

use std::borrow::Cow;

use flash_indexer_core::LocalHash;
use flash_indexer_core::hashing::{BlockSize, HashVariant, LocalHasher, MultimodalItem};
use xxhash_rust::xxh3::xxh3_64;

use crate::event::{BlockStored, ExtraKey, TokenIds};

/// What besides its tokens makes up the content of a store's blocks.
pub(super) struct Content<'a> {
    pub(super) lora: Option<Cow<'a, str>>,
    /// The adapter's name as it stands among a block's keys.
    lora_key: Option<&'a str>,
    /// Named by this event; blocks further down a sequence inherit it.
    pub(super) salt: Option<&'a str>,
    /// Which extra key of the first block is the salt.
    salt_key: Option<usize>,
    keys: &'a [Option<Vec<ExtraKey<'a>>>],
}

impl<'a> Content<'a> {
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
        let mut content = Self { lora, lora_key: event.lora_name, salt, salt_key: None, keys };
        if event.parent_block_hash.is_none() {
            content.find_salt();
        }
        content
    }

    /// The salt stands last among the first block's bare texts, after the adapter's name.
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

    /// Which of a block's keys is the adapter's name: the first text that is. The same text again is
    /// something else, such as a salt that is called like the adapter.
    fn lora_key_of(&self, keys: &[ExtraKey<'_>]) -> Option<usize> {
        let name = self.lora_key?;
        keys.iter().position(|key| *key == ExtraKey::Text(name))
    }

    pub(super) fn local_hashes(
        &self,
        hasher: &mut LocalHasher,
        tokens: &TokenIds,
        block_size: BlockSize,
        space: HashVariant,
    ) -> Vec<LocalHash> {
        let mut items = Vec::new();
        let mut hash = |block: usize, tokens: &[u32]| {
            self.items(block, &mut items);
            hasher.multimodal(space, tokens, &items)
        };
        match tokens {
            TokenIds::Plain(tokens) => {
                let blocks = tokens.chunks_exact(block_size.token_count()).enumerate();
                blocks.map(|(block, tokens)| hash(block, tokens)).collect()
            }
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

    /// Multimodal items of one block, and whatever else is part of its identity.
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

/// An item's hash: its identity is a hexadecimal digest, of which the first 64 bits count; any other
/// text is hashed.
fn item_hash(id: &str) -> u64 {
    let digits = id.get(..16).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_else(|| xxh3_64(id.as_bytes()))
}
