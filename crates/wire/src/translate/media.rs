//! Tiers of the media that engines and shared caches name.

use flash_indexer_core::Tier;

use super::{TranslateError, Translator};

/// Longest unknown medium or manager that an error repeats, in characters.
pub(super) const MEDIUM_CHARS_MAX: usize = 64;
/// Beginning of LMCache's names of its second level, which is after host memory.
const LMCACHE_L2: &str = "LMCACHE-L2";

/// Whether a text names a medium of any engine.
pub(crate) fn is_known_medium(text: &str) -> bool {
    tier(Some(text), None).is_ok()
}

/// The tier that an engine's medium names.
fn tier(medium: Option<&str>, locality: Option<&str>) -> Result<Tier, TranslateError> {
    if locality.is_some_and(|locality| locality.eq_ignore_ascii_case("REMOTE")) {
        return Ok(Tier::External);
    }
    let medium = medium.unwrap_or_default();
    match medium.to_ascii_uppercase().as_str() {
        "" | "GPU" | "DEVICE" => Ok(Tier::Device),
        "CPU" | "CPU_PINNED" | "CPU_TIER1" => Ok(Tier::Host),
        "CPU_TIER2" | "DISK" | "NVME" | "STORAGE" | "FS" => Ok(Tier::Disk),
        "EXTERNAL" | "NETWORK" | "REMOTE" | "SHARED" | "OBJ" => Ok(Tier::External),
        _ => Err(TranslateError::UnknownMedium { medium: medium.chars().take(MEDIUM_CHARS_MAX).collect() }),
    }
}

impl Translator {
    /// The tier that a medium names. A shared cache has its own media and no device memory.
    pub(super) fn tier(&self, medium: Option<&str>, locality: Option<&str>) -> Result<Tier, TranslateError> {
        let named = tier(medium, locality);
        let Some(own) = self.options.cache_tier else { return named };
        Ok(match named {
            Ok(Tier::Device) => own,
            Ok(tier) => tier,
            Err(_) => {
                let is_second_level = medium
                    .and_then(|medium| medium.get(..LMCACHE_L2.len()))
                    .is_some_and(|start| start.eq_ignore_ascii_case(LMCACHE_L2));
                if is_second_level { own.max(Tier::Disk) } else { own }
            }
        })
    }
}
