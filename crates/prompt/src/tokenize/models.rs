//! The cache of tokenizers by model: each is loaded once, and the least recently used is evicted.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use lru::LruCache;
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use super::counters::Counters;
use super::error::{FailedSource, LoadError, TokenizeError, UnavailableModel};
use super::job::panic_message;
use super::limits::MODEL_NAME_BYTES_MAX;
use super::options::PoolOptions;
use super::source::{ModelTokenizer, TokenizerSource};

/// Maximum number of models that are cached as missing, in addition to the loaded ones.
pub const MISSING_MODELS_MAX: usize = 1024;

/// A tokenizer and the name of its source.
#[derive(Clone)]
pub(super) struct LoadedTokenizer {
    pub(super) tokenizer: Arc<dyn ModelTokenizer>,
    pub(super) source_name: Arc<str>,
}

/// Models whose tokenizers are loaded, being loaded or cached as missing.
pub(super) struct Models {
    sources: Vec<(Arc<str>, Box<dyn TokenizerSource>)>,
    options: PoolOptions,
    state: Mutex<State>,
    load_ended: Condvar,
    counters: Arc<Counters>,
}

struct State {
    loaded: LruCache<String, CachedTokenizer>,
    missing: LruCache<String, CachedFailure>,
    loading: HashSet<String>,
}

struct CachedTokenizer {
    loaded: LoadedTokenizer,
    checked: Instant,
}

struct CachedFailure {
    why: Arc<UnavailableModel>,
    since: Instant,
}

enum Lookup {
    Loaded(LoadedTokenizer),
    /// A loaded tokenizer that must be checked against its source.
    Unchecked(LoadedTokenizer),
    Missing(Arc<UnavailableModel>),
    Loading,
    Unknown,
}

impl Models {
    pub(super) fn new(sources: Vec<Box<dyn TokenizerSource>>, options: PoolOptions, counters: Arc<Counters>) -> Self {
        let loaded = lru(options.loaded_models_max);
        let state = State { loaded, missing: lru(MISSING_MODELS_MAX), loading: HashSet::new() };
        let sources = sources.into_iter().map(|source| (Arc::from(source.name()), source)).collect();
        Self { sources, options, state: Mutex::new(state), load_ended: Condvar::new(), counters }
    }

    pub(super) fn loaded(&self) -> usize {
        self.state.lock().loaded.len()
    }

    /// Number of tokenizers that were loaded and dropped.
    pub(super) fn dropped(&self) -> u64 {
        let counters = self.counters.lock();
        counters.cache_evictions + counters.cache_outdated
    }

    pub(super) fn limits_reached(&self) -> u64 {
        self.sources.iter().map(|(_, source)| source.limits_reached()).sum()
    }

    /// The tokenizer of a model. Loads it if it is not cached, or waits while another thread loads it.
    pub(super) fn get(&self, model: &str) -> Result<LoadedTokenizer, TokenizeError> {
        if model.len() > MODEL_NAME_BYTES_MAX {
            return Err(TokenizeError::ModelName { bytes: model.len() });
        }
        let mut state = self.state.lock();
        let mut has_missed = false;
        loop {
            match state.find(model, &self.options) {
                Lookup::Loaded(loaded) => {
                    if !has_missed {
                        self.counters.lock().cache_hits += 1;
                    }
                    return Ok(loaded);
                }
                Lookup::Unchecked(loaded) => {
                    drop(state);
                    if loaded.tokenizer.is_current() {
                        self.counters.lock().cache_hits += 1;
                        return Ok(loaded);
                    }
                    state = self.state.lock();
                    if state.drop_outdated(model, &loaded) {
                        self.counters.lock().cache_outdated += 1;
                    }
                }
                Lookup::Missing(why) => {
                    if !has_missed {
                        self.counters.lock().cache_negative_hits += 1;
                    }
                    return Err(why.into());
                }
                Lookup::Loading => {
                    self.count_miss(&mut has_missed);
                    self.load_ended.wait(&mut state);
                }
                Lookup::Unknown => {
                    self.count_miss(&mut has_missed);
                    state.loading.insert(model.to_owned());
                    break;
                }
            }
        }
        drop(state);
        let result = self.load(model);
        self.cache(model, &result);
        result.map_err(Into::into)
    }

    fn count_miss(&self, has_missed: &mut bool) {
        if !std::mem::replace(has_missed, true) {
            self.counters.lock().cache_misses += 1;
        }
    }

    fn load(&self, model: &str) -> Result<LoadedTokenizer, Arc<UnavailableModel>> {
        let mut tried = Vec::new();
        for (source_name, source) in &self.sources {
            match load_from(source.as_ref(), model) {
                Ok(tokenizer) => {
                    self.report_cutting(model, tokenizer.as_ref());
                    if let Some(class) = tokenizer.unknown_class() {
                        warn!(
                            model,
                            class,
                            "engines on transformers 5 do not take tokenizer.json as it is for this class, so their tokens may be others; \
                             compare them with flash-indexer doctor --engine-url, or send token_ids"
                        );
                    }
                    return Ok(LoadedTokenizer { tokenizer, source_name: Arc::clone(source_name) });
                }
                Err(error) => tried.push(FailedSource { name: source_name.to_string(), error }),
            }
        }
        Err(Arc::new(UnavailableModel { model: model.to_owned(), tried, tried_again_in: self.options.missing_for }))
    }

    /// Counts where the tokenizer's texts are cut, and logs why they are not cut between words.
    fn report_cutting(&self, model: &str, tokenizer: &dyn ModelTokenizer) {
        let Some((cutting, why)) = tokenizer.cutting() else { return };
        self.counters.lock().cuttings[cutting as usize] += 1;
        if let Some(reason) = why {
            info!(model, cuts = cutting.as_str(), reason, "prompts of this tokenizer are cut into fewer pieces");
        }
    }

    fn cache(&self, model: &str, result: &Result<LoadedTokenizer, Arc<UnavailableModel>>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.loading.remove(model);
        match result {
            Ok(loaded) => {
                self.counters.lock().loads += 1;
                state.missing.pop(model);
                let cached = CachedTokenizer { loaded: loaded.clone(), checked: now };
                if state.loaded.push(model.to_owned(), cached).is_some() {
                    self.counters.lock().cache_evictions += 1;
                }
            }
            Err(why) => {
                self.counters.lock().loads_failed += 1;
                state.missing.push(model.to_owned(), CachedFailure { why: Arc::clone(why), since: now });
            }
        }
        drop(state);
        self.load_ended.notify_all();
    }
}

impl State {
    fn find(&mut self, model: &str, options: &PoolOptions) -> Lookup {
        if let Some(kept) = self.loaded.get_mut(model) {
            let loaded = kept.loaded.clone();
            if kept.checked.elapsed() < options.checked_every {
                return Lookup::Loaded(loaded);
            }
            // Other threads keep using it while this one checks the files.
            kept.checked = Instant::now();
            return Lookup::Unchecked(loaded);
        }
        if let Some(missing) = self.missing.get(model)
            && let Some(left) = options.missing_for.checked_sub(missing.since.elapsed()).filter(|left| !left.is_zero())
        {
            return Lookup::Missing(Arc::new(UnavailableModel {
                tried_again_in: left,
                ..UnavailableModel::clone(&missing.why)
            }));
        }
        if self.loading.contains(model) { Lookup::Loading } else { Lookup::Unknown }
    }

    /// Drops an outdated tokenizer. False if another thread has done so.
    fn drop_outdated(&mut self, model: &str, outdated: &LoadedTokenizer) -> bool {
        let is_there =
            self.loaded.get(model).is_some_and(|kept| Arc::ptr_eq(&kept.loaded.tokenizer, &outdated.tokenizer));
        is_there && self.loaded.pop(model).is_some()
    }
}

/// An empty cache of at most `entries_max` entries, at least one. Memory is allocated as entries come.
fn lru<V>(entries_max: usize) -> LruCache<String, V> {
    let mut cache = LruCache::unbounded();
    cache.resize(NonZeroUsize::new(entries_max).unwrap_or(NonZeroUsize::MIN));
    cache
}

fn load_from(source: &dyn TokenizerSource, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
    catch_unwind(AssertUnwindSafe(|| source.load(model)))
        .unwrap_or_else(|panic| Err(LoadError::Failed(format!("the source panicked: {}", panic_message(&*panic)))))
}
