//! Models whose paths were named one by one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::tokenizer::FileTokenizer;
use crate::tokenize::source::{LoadError, ModelTokenizer, TokenizerSource};

/// Paths by model: of a tokenizer's file, of a model's folder, or of its folder in a hub's cache.
#[derive(Debug, Clone, Default)]
pub struct NamedPaths {
    paths: BTreeMap<String, PathBuf>,
}

impl FromIterator<(String, PathBuf)> for NamedPaths {
    fn from_iter<I: IntoIterator<Item = (String, PathBuf)>>(paths: I) -> Self {
        Self { paths: paths.into_iter().collect() }
    }
}

impl TokenizerSource for NamedPaths {
    fn place(&self) -> String {
        "named paths".to_owned()
    }

    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        match self.paths.get(model) {
            Some(path) => Ok(Arc::new(FileTokenizer::read(path)?)),
            None => Err(LoadError::Absent(format!("none of the {} named is of this model", self.paths.len()))),
        }
    }
}
