//! Adapters and salts that a model's engines used recently.

use flash_indexer_wire::AdapterSalt;
use parking_lot::Mutex;

/// Pairs of adapter and salt kept for each model. The least recently used ones are dropped.
const VARIANTS_MAX: usize = 32;
/// Length limit of an adapter's name, in bytes. Pairs with longer names are not kept.
const NAME_BYTES_MAX: usize = 256;

/// The pairs of adapter and salt that a model's engines used most recently.
#[derive(Debug, Default)]
pub struct SeenVariants {
    /// The latest pair last.
    seen: Mutex<Vec<AdapterSalt>>,
}

impl SeenVariants {
    /// Records that an engine stored blocks with this adapter and salt. Cheap if the previous call recorded the same
    /// pair.
    pub fn record(&self, adapter_salt: &AdapterSalt) {
        let mut seen = self.seen.lock();
        if seen.last() == Some(adapter_salt) || adapter_salt.lora_name().is_some_and(|name| name.len() > NAME_BYTES_MAX)
        {
            return;
        }
        match seen.iter().position(|other| other == adapter_salt) {
            Some(at) => seen[at..].rotate_left(1),
            None => {
                if seen.len() >= VARIANTS_MAX {
                    seen.remove(0);
                }
                seen.push(adapter_salt.clone());
            }
        }
    }

    /// The recorded pairs, the latest one last.
    pub fn list(&self) -> Vec<AdapterSalt> {
        self.seen.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::hashing::Salt;

    use super::*;

    #[test]
    fn the_latest_adapters_and_salts_are_kept() {
        let variants = SeenVariants::default();
        let salted = |at: usize| AdapterSalt::new(None, Salt::new(&at.to_string()));
        (0..VARIANTS_MAX).for_each(|at| variants.record(&salted(at)));
        variants.record(&salted(0));
        variants.record(&salted(99));
        variants.record(&AdapterSalt::new(Some(&"x".repeat(NAME_BYTES_MAX + 1)), None));
        let list = variants.list();
        assert_eq!(list.len(), VARIANTS_MAX);
        assert_eq!((&list[0], &list[VARIANTS_MAX - 2], &list[VARIANTS_MAX - 1]), (&salted(2), &salted(0), &salted(99)));
    }
}
