//! Tokenization of a text, piece by piece.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokenizers::Tokenizer;

use super::added_tokens::{AddedTokens, PlacedTokens, ScanPosition, Segment};
use super::analysis::{Cutting, cuts, obstacle};
use super::cache::PieceCache;
use super::cuts::Cuts;
use super::encoder::Encoder;
use super::frame::Frame;
use crate::tokenize::error::TokenizeError;
use crate::tokenize::limits::UNCUT_BYTES_MAX;
use crate::tokenize::sliced::SlicedTokenization;
use crate::tokenize::truncation::Truncation;

/// Approximate number of bytes that are tokenized in one slice of work. A piece is never split.
const SLICE_BYTES: usize = 8 << 10;
/// Least work of a piece or an added token, in bytes.
const SEGMENT_WORK: usize = 16;
/// Minimum size of a long piece, in bytes. The worker for long pieces tokenizes it.
const LONG_PIECE_BYTES: usize = 64 << 10;
/// Number of bytes found in the cache that take as long as one that is tokenized.
const FOUND_BYTES_PER_TOKENIZED: usize = 64;

/// A tokenizer that tokenizes texts piece by piece.
pub(in crate::tokenize) struct PieceTokenizer {
    tokenizer: Tokenizer,
    /// Cached pieces belong to one loaded tokenizer. Pieces of a former version are never found again, and are evicted eventually.
    identity: u64,
    way: Result<CutTokenizer, String>,
}

/// A tokenizer whose texts are cut.
struct CutTokenizer {
    added_tokens: AddedTokens,
    encoder: Encoder,
    cuts: Result<Cuts, String>,
    /// Without and with special tokens.
    frames: [Frame; 2],
}

impl PieceTokenizer {
    pub(in crate::tokenize) fn new(tokenizer: Tokenizer) -> Self {
        // Even numbers. The next odd number is for pieces at the start of a text.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let identity = NEXT.fetch_add(2, Ordering::Relaxed);
        let way = CutTokenizer::of(&tokenizer);
        Self { tokenizer, identity, way }
    }

    /// The id of a token.
    pub(in crate::tokenize) fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The text of tokens, with special tokens. A token outside the vocabulary is shown by its number.
    pub(in crate::tokenize) fn decode(&self, tokens: &[u32]) -> Result<String, TokenizeError> {
        let is_known = |token: &u32| self.tokenizer.id_to_token(*token).is_some();
        let mut text = String::new();
        for run in tokens.chunk_by(|left, right| is_known(left) == is_known(right)) {
            match run.first().is_some_and(is_known) {
                true => {
                    let decoded = self.tokenizer.decode(run, false);
                    text += &decoded.map_err(|error| TokenizeError::Decode(error.to_string()))?;
                }
                false => text.extend(run.iter().map(|token| format!("[unknown token {token}]"))),
            }
        }
        Ok(text)
    }

    /// Whether a text spells out an added token.
    pub(in crate::tokenize) fn has_added_token(&self, text: &str) -> bool {
        match &self.way {
            Ok(way) => {
                let mut position = ScanPosition::default();
                std::iter::from_fn(|| way.added_tokens.next(text, &mut position))
                    .any(|segment| matches!(segment, Segment::Token(_)))
            }
            Err(_) => {
                let mut added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder().values();
                added.any(|token| text.contains(&token.content))
            }
        }
    }

    /// Bytes at the end of a text that may begin an added token.
    fn unfinished_bytes(&self, text: &str) -> usize {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder().values();
        let bytes = added.filter_map(|token| {
            let begins_at_end = |at: &usize| token.content.get(..*at).is_some_and(|begin| text.ends_with(begin));
            (1..token.content.len()).rev().find(begins_at_end)
        });
        bytes.max().unwrap_or(0)
    }

    /// Where texts are cut, and why not at more places.
    pub(in crate::tokenize) fn cutting(&self) -> (Cutting, Option<&str>) {
        match &self.way {
            Err(why) => (Cutting::Nowhere, Some(why)),
            Ok(CutTokenizer { cuts: Err(why), .. }) => (Cutting::AddedTokens, Some(why)),
            Ok(_) => (Cutting::Words, None),
        }
    }
}

impl CutTokenizer {
    fn of(tokenizer: &Tokenizer) -> Result<Self, String> {
        if let Some(why) = obstacle(tokenizer) {
            return Err(why);
        }
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let unnormalized = added.iter().filter(|(_, token)| !token.normalized);
        let added_tokens = AddedTokens::new(unnormalized.map(|(id, token)| (*id, token.content.as_str(), token)))?;
        let frame = |adds_special_tokens| {
            Frame::of(tokenizer, adds_special_tokens)
                .ok_or_else(|| "the post-processor does more than to add tokens around a text".to_owned())
        };
        let frames = [frame(false)?, frame(true)?];
        Ok(Self { added_tokens, encoder: Encoder::of(tokenizer), cuts: cuts(tokenizer), frames })
    }
}

/// Tokenization of one text, in slices.
pub(in crate::tokenize) struct TextTokenization {
    tokenizer: Arc<PieceTokenizer>,
    cache: Arc<PieceCache>,
    text: String,
    /// For a text that is the beginning of an unknown one: the end of the bytes in which every added token is known.
    known: Option<usize>,
    /// The type of the content part that follows such a beginning.
    media: Option<&'static str>,
    adds_special_tokens: bool,
    kept: Option<Truncation>,
    position: ScanPosition,
    /// The special tokens, if the text itself is not searched for them.
    placed: Option<PlacedTokens>,
    /// The rest of the text before the next added token.
    rest: Range<usize>,
    /// Whether a long piece comes next. It is tokenized in its own step.
    is_before_uncut_piece: bool,
    ids: Vec<u32>,
}

impl TextTokenization {
    pub(in crate::tokenize) fn new(
        tokenizer: Arc<PieceTokenizer>,
        cache: Arc<PieceCache>,
        text: String,
        adds_special_tokens: bool,
        kept: Option<Truncation>,
    ) -> Self {
        Self {
            tokenizer,
            cache,
            text,
            known: None,
            media: None,
            adds_special_tokens,
            kept,
            position: ScanPosition::default(),
            placed: None,
            rest: 0..0,
            is_before_uncut_piece: false,
            ids: Vec::new(),
        }
    }

    /// Tokenization of the beginning of a text, which ends before a content part of the type `media`: the ids that do not depend on
    /// the rest.
    pub(in crate::tokenize) fn of_beginning(
        tokenizer: Arc<PieceTokenizer>,
        cache: Arc<PieceCache>,
        beginning: String,
        adds_special_tokens: bool,
        media: &'static str,
    ) -> Self {
        let known = beginning.len() - tokenizer.unfinished_bytes(&beginning);
        let whole = Self::new(tokenizer, cache, beginning, adds_special_tokens, None);
        Self { known: Some(known), media: Some(media), ..whole }
    }

    /// Limits special tokens to these places of the text, in order. An empty place separates two texts.
    ///
    /// # Errors
    ///
    /// If the vocabulary lacks one of the tokens, or the tokenizer's texts cannot be cut around them.
    pub(in crate::tokenize) fn with_tokens_at(mut self, places: &[Range<usize>]) -> Result<Self, TokenizeError> {
        if let Err(why) = &self.tokenizer.way {
            return Err(TokenizeError::Tokenizer(format!("the text cannot be cut around special tokens: {why}")));
        }
        let id = |place: &Range<usize>| {
            let token = &self.text[place.clone()];
            let id = if token.is_empty() { Some(0) } else { self.tokenizer.token_id(token) };
            let id = id.ok_or_else(|| TokenizeError::Tokenizer(format!("the vocabulary has no token {token:?}")))?;
            Ok((place.clone(), id))
        };
        let places = places.iter().filter(|place| place.end <= self.text.len());
        self.placed = Some(PlacedTokens::new(places.map(id).collect::<Result<_, TokenizeError>>()?));
        self.known = self.known.map(|_| self.text.len());
        Ok(self)
    }
}

impl SlicedTokenization for TextTokenization {
    fn step(&mut self) -> Result<Option<Vec<u32>>, TokenizeError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let way = match &tokenizer.way {
            Ok(way) => way,
            // Any id may depend on the rest of the text.
            Err(_) if self.known.is_some() => return Ok(Some(Vec::new())),
            Err(_) if self.defers_piece(self.text.len())? => return Ok(None),
            Err(_) => return self.tokenize_whole().map(Some),
        };
        let frame = &way.frames[usize::from(self.adds_special_tokens)];
        let mut work = 0;
        while work < SLICE_BYTES {
            if !self.rest.is_empty() {
                match self.tokenize_piece(way)? {
                    Some(bytes) => work += bytes,
                    None => return Ok(None),
                }
                continue;
            }
            let segment = match &mut self.placed {
                Some(tokens) => tokens.next(&self.text),
                None => way.added_tokens.next(&self.text, &mut self.position),
            };
            match segment {
                Some(Segment::Token(_)) if self.known.is_some_and(|known| self.position.searched > known) => {
                    return Ok(Some(frame.before(&self.ids)));
                }
                Some(Segment::Token(id)) => {
                    self.ids.push(id);
                    work += SEGMENT_WORK;
                }
                Some(Segment::Text(range)) => self.rest = self.known_part(way, range),
                None if self.known.is_some() => return Ok(Some(frame.before(&self.ids))),
                None => return Ok(Some(frame.around(std::mem::take(&mut self.ids), self.kept))),
            }
        }
        Ok(None)
    }

    fn is_before_uncut_piece(&self) -> bool {
        self.is_before_uncut_piece
    }

    fn media(&self) -> Option<&'static str> {
        self.media
    }
}

impl TextTokenization {
    /// Whether a piece is left to the next step, because it is long. Fails if it is too long.
    fn defers_piece(&mut self, bytes: usize) -> Result<bool, TokenizeError> {
        if bytes > UNCUT_BYTES_MAX {
            return Err(TokenizeError::Uncut { bytes });
        }
        self.is_before_uncut_piece = bytes > LONG_PIECE_BYTES && !self.is_before_uncut_piece;
        Ok(self.is_before_uncut_piece)
    }

    /// Tokenizes the first piece of the rest. Returns the work, in bytes. `None` if the piece is left to the next step.
    fn tokenize_piece(&mut self, way: &CutTokenizer) -> Result<Option<usize>, TokenizeError> {
        let begin = self.rest.start;
        let (end, next) = match &way.cuts {
            Ok(cuts) => cuts.next(&self.text[..self.rest.end], begin),
            Err(_) => (self.rest.end, self.rest.end),
        };
        let is_first = begin == 0;
        let key = self.tokenizer.identity + u64::from(is_first && way.encoder.depends_on_place());
        if !self.is_before_uncut_piece
            && let Some(ids) = self.cache.get(key, &self.text[begin..end])
        {
            self.rest.start = next;
            self.ids.extend_from_slice(&ids);
            return Ok(Some(SEGMENT_WORK + (end - begin) / FOUND_BYTES_PER_TOKENIZED));
        }
        if self.defers_piece(end - begin)? {
            return Ok(None);
        }
        self.rest.start = next;
        let piece = &self.text[begin..end];
        let before = self.ids.len();
        way.encoder
            .encode(&self.tokenizer.tokenizer, piece, is_first, &mut self.ids)
            .map_err(|error| TokenizeError::Tokenizer(error.to_string()))?;
        self.cache.insert(key, piece, &self.ids[before..]);
        Ok(Some(SEGMENT_WORK + piece.len()))
    }

    /// The part of a range without added tokens that does not depend on the rest of the text: the whole range if an added
    /// token follows it, else the part up to a cut.
    fn known_part(&self, way: &CutTokenizer, range: Range<usize>) -> Range<usize> {
        match self.known {
            Some(known) if range.end == self.text.len() => {
                let cut = way.cuts.as_ref().ok().and_then(|cuts| cuts.last(&self.text, range.start, known));
                range.start..cut.unwrap_or(range.start)
            }
            _ => range,
        }
    }

    fn tokenize_whole(&self) -> Result<Vec<u32>, TokenizeError> {
        let encoding = self.tokenizer.tokenizer.encode_fast(self.text.as_str(), self.adds_special_tokens);
        let encoding = encoding.map_err(|error| TokenizeError::Tokenizer(error.to_string()))?;
        Ok(match self.kept {
            Some(kept) => kept.of(encoding.get_ids(), |at| encoding.get_special_tokens_mask()[at] != 0),
            None => encoding.get_ids().to_vec(),
        })
    }
}
