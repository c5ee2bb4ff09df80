//! Request traces in the format that Mooncake publishes: JSON lines with a hash id for every 512
//! tokens of prompt.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{HashedPrompt, Request};
use crate::random::{mix, token};

/// Tokens of one hash id of the trace.
const TOKENS_PER_HASH_ID: usize = 512;

/// Failure to read a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("failed to read {path}: {source}; check its name and permissions")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not a request.
    #[error("line {line} of {path} is not a request of the trace format: {source}; correct the line")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, counted from one.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// A line has fewer hash ids than its prompt needs.
    #[error("line {line} of {path} has {ids} hash ids for a prompt of {tokens} tokens; give one for each 512 tokens")]
    HashIds {
        /// The file.
        path: PathBuf,
        /// Line number, counted from one.
        line: usize,
        /// Hash ids on the line.
        ids: usize,
        /// Tokens of its prompt.
        tokens: usize,
    },
}

/// One line of a trace.
#[derive(Debug, Deserialize)]
struct Line {
    timestamp: u64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

/// The requests of a trace file. Tokens are synthetic; equal hash ids have equal tokens.
#[derive(Debug)]
pub struct MooncakeTrace {
    lines: Vec<Line>,
}

impl MooncakeTrace {
    /// Reads a whole trace; tokens are generated when requests are iterated. A file whose name ends in `.zst` is
    /// decompressed.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or a line is not a request.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let file: Box<dyn BufRead> = match path.extension().is_some_and(|extension| extension == "zst") {
            true => Box::new(BufReader::new(zstd::stream::read::Decoder::new(file).map_err(io)?)),
            false => Box::new(BufReader::new(file)),
        };
        let mut lines = Vec::new();
        for (at, text) in file.lines().enumerate() {
            let line = at + 1;
            let text = text.map_err(io)?;
            if text.trim().is_empty() {
                continue;
            }
            let request: Line = serde_json::from_str(&text).map_err(|source| TraceError::Line {
                path: path.to_owned(),
                line,
                source,
            })?;
            let (ids, tokens) = (request.hash_ids.len(), request.input_length);
            if ids < tokens.div_ceil(TOKENS_PER_HASH_ID) {
                return Err(TraceError::HashIds { path: path.to_owned(), line, ids, tokens });
            }
            lines.push(request);
        }
        Ok(Self { lines })
    }

    /// Requests in the trace.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether the trace has no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The prompts in the order of the trace, without tokens and outputs: an id for every 512 tokens.
    pub fn prompts(&self) -> impl Iterator<Item = HashedPrompt<'_>> + Clone {
        self.lines.iter().map(|line| HashedPrompt { at_ms: line.timestamp, hash_ids: &line.hash_ids, output_ids: &[] })
    }

    /// The requests in the order of the trace; `seed` determines all tokens.
    pub fn requests(&self, seed: u64) -> impl Iterator<Item = Request> + '_ {
        let prompts = mix(seed);
        let outputs = mix(prompts);
        self.lines.iter().enumerate().map(move |(number, line)| {
            let prompt = line
                .hash_ids
                .iter()
                .flat_map(|&id| (0..TOKENS_PER_HASH_ID as u64).map(move |position| token(prompts ^ id, position)));
            let output = (0..line.output_length as u64).map(|position| token(outputs ^ number as u64, position));
            Request {
                at_ms: line.timestamp,
                prompt: prompt.take(line.input_length).collect(),
                output: output.collect(),
            }
        })
    }
}
