//! Configured paths as a source of tokenizers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::tokenizer::FileTokenizer;
use crate::tokenize::error::LoadError;
use crate::tokenize::source::{ModelTokenizer, TokenizerSource};

/// Configured paths by model: a tokenizer's file, a model's folder, or its folder in a cache of the Hugging Face hub.
#[derive(Debug, Clone, Default)]
pub struct NamedPaths {
    paths: BTreeMap<String, PathBuf>,
    clock: Option<fn() -> SystemTime>,
}

impl NamedPaths {
    /// Sets the clock of the chat templates' `strftime_now`, instead of the system's.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> SystemTime) -> Self {
        Self { clock: Some(clock), ..self }
    }
}

impl FromIterator<(String, PathBuf)> for NamedPaths {
    fn from_iter<I: IntoIterator<Item = (String, PathBuf)>>(paths: I) -> Self {
        Self { paths: paths.into_iter().collect(), clock: None }
    }
}

impl TokenizerSource for NamedPaths {
    fn name(&self) -> String {
        "named paths".to_owned()
    }

    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        let Some(path) = self.paths.get(model) else {
            let why = format!("none of the {} configured paths is for this model", self.paths.len());
            return Err(LoadError::Absent(why));
        };
        Ok(Arc::new(FileTokenizer::read_with_clock(model, path, self.clock.unwrap_or(SystemTime::now))?))
    }
}
