//! Adapters and salts that a model's engines have used.

use flash_indexer_wire::AdapterSalt;
use parking_lot::Mutex;

/// Adapters with salts that are remembered for each model: the ones seen last.
const VARIANTS_MAX: usize = 32;
/// A longer name of an adapter is not remembered, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The spaces of content seen last.
#[derive(Debug, Default)]
pub struct SeenVariants {
    /// The latest one last.
    seen: Mutex<Vec<AdapterSalt>>,
}

impl SeenVariants {
    /// An engine has stored blocks of this space. Cheap when it is the one of the call before.
    pub fn note(&self, space: &AdapterSalt) {
        let mut seen = self.seen.lock();
        if seen.last() == Some(space) || space.lora_name().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
            return;
        }
        match seen.iter().position(|other| other == space) {
            Some(at) => seen[at..].rotate_left(1),
            None => {
                if seen.len() >= VARIANTS_MAX {
                    seen.remove(0);
                }
                seen.push(space.clone());
            }
        }
    }

    /// The spaces, the latest one last.
    pub fn list(&self) -> Vec<AdapterSalt> {
        self.seen.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::hashing::Salt;

    use super::*;

    #[test]
    fn the_spaces_seen_last_are_kept() {
        let spaces = SeenVariants::default();
        let salted = |at: usize| AdapterSalt::new(None, Salt::new(&at.to_string()));
        (0..VARIANTS_MAX).for_each(|at| spaces.note(&salted(at)));
        spaces.note(&salted(0));
        spaces.note(&salted(99));
        spaces.note(&AdapterSalt::new(Some(&"x".repeat(NAME_BYTES_MAX + 1)), None));
        let list = spaces.list();
        assert_eq!(list.len(), VARIANTS_MAX);
        assert_eq!((&list[0], &list[VARIANTS_MAX - 2], &list[VARIANTS_MAX - 1]), (&salted(2), &salted(0), &salted(99)));
    }
}
