//! Media in chats: the part of a prompt before the tokens that only the engine can compute.
//!
//! A chat with media is rendered twice, with other stand-ins for its media. The common beginning of both texts does not depend
//! on media and precedes all of them.

use std::cell::Cell;

use chat_template::Json;

use super::error::PrepareError;
use super::message::{Entries, object};

/// Types of content parts with media, and the modality that engines give to templates. Without one, a text stands for the part.
const MEDIA_PARTS: [(&str, Option<&str>); 10] = [
    ("image_url", Some("image")),
    ("input_image", Some("image")),
    ("image_pil", Some("image")),
    ("image_embeds", Some("image")),
    ("audio_url", Some("audio")),
    ("input_audio", Some("audio")),
    ("audio_embeds", Some("audio")),
    ("video_url", Some("video")),
    ("video_embeds", Some("video")),
    ("prompt_embeds", None),
];

/// Types of content parts that some engines convert to text in their own code.
const UNKNOWN_PARTS: [&str; 2] = ["file", "image"];

/// A content part with media.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MediaPart {
    pub(super) kind: &'static str,
    modality: Option<&'static str>,
}

impl MediaPart {
    /// The part of a type. `None` if parts of this type have no media.
    ///
    /// # Errors
    ///
    /// If the prompt of a chat with such a part is unknown.
    pub(super) fn of(kind: &str) -> Result<Option<Self>, PrepareError> {
        if UNKNOWN_PARTS.contains(&kind) {
            return Err(PrepareError::Unsupported(format!(
                "the prompt of a chat with a part of type {kind:?} is known to the engine only; send token_ids"
            )));
        }
        let part = MEDIA_PARTS.iter().find(|(name, _)| *name == kind);
        Ok(part.map(|&(kind, modality)| Self { kind, modality }))
    }
}

/// Whether parts of a type have media.
pub(super) fn is_media(kind: &str) -> bool {
    !matches!(MediaPart::of(kind), Ok(None))
}

/// Stand-in for media.
#[derive(Debug, Clone, Copy, PartialEq)]
enum MediaPlaceholder {
    /// The engine's own value in lists of parts for templates, and a name in texts.
    AsEngine,
    /// A character that no text has.
    PrivateCharacter,
}

/// The first media part of a chat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FirstMedia {
    pub(super) kind: &'static str,
    /// Whether the text around the stand-in shows where the engine puts the media.
    pub(super) is_placed: bool,
}

/// Stand-ins for media while a chat is prepared.
pub(super) struct Media {
    placeholder: MediaPlaceholder,
    first: Cell<Option<FirstMedia>>,
}

impl Media {
    pub(super) fn as_engine() -> Self {
        Self { placeholder: MediaPlaceholder::AsEngine, first: Cell::new(None) }
    }

    pub(super) fn as_private_character() -> Self {
        Self { placeholder: MediaPlaceholder::PrivateCharacter, first: Cell::new(None) }
    }

    /// The first media part so far.
    pub(super) fn first(&self) -> Option<FirstMedia> {
        self.first.get()
    }

    fn note(&self, part: MediaPart, is_placed: bool) {
        let first = self.first.get();
        let is_placed = is_placed && first.is_none_or(|first| first.is_placed);
        self.first.set(Some(FirstMedia { kind: first.map_or(part.kind, |first| first.kind), is_placed }));
    }

    /// Records a part that is not passed to the template.
    pub(super) fn leave_out(&self, part: MediaPart) {
        self.note(part, false);
    }

    /// The stand-in in a text.
    pub(super) fn text(&self, part: MediaPart) -> String {
        self.note(part, true);
        match self.placeholder {
            MediaPlaceholder::AsEngine => format!("<{}>", part.modality.unwrap_or(part.kind)),
            MediaPlaceholder::PrivateCharacter => "\u{e000}".to_owned(),
        }
    }

    /// The stand-in in a list of parts, with further keys.
    pub(super) fn part(&self, part: MediaPart, extra: Entries) -> Result<Json, PrepareError> {
        let text = self.text(part);
        let entries: Entries = match part.modality.filter(|_| self.placeholder == MediaPlaceholder::AsEngine) {
            Some(modality) => vec![("type".to_owned(), modality.into())],
            None => vec![("type".to_owned(), "text".into()), ("text".to_owned(), text.into())],
        };
        Ok(object(entries.into_iter().chain(extra))?)
    }
}

/// End of the known part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaCut {
    /// Type of the first content part with media.
    pub kind: &'static str,
    /// Number of bytes of the text that certainly precede it.
    pub bytes: usize,
}

/// Length of the common beginning of two texts, in bytes of whole characters.
pub(super) fn common_bytes(a: &str, b: &str) -> usize {
    let pairs = a.char_indices().zip(b.chars());
    pairs.take_while(|((_, a), b)| a == b).last().map_or(0, |((at, character), _)| at + character.len_utf8())
}
