//! The format in which a template takes the content of messages, detected from its loops, as the engines do.

use std::collections::HashSet;

use chat_template::{Macro, Outline, Read};

/// The form of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// A text.
    Text,
    /// A list of parts.
    Parts,
}

impl ContentFormat {
    /// The engines' name of the format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Parts => "openai",
        }
    }
}

const MESSAGES: &str = "messages";
const CONTENT: &str = "content";

/// vLLM's rule: parts if a loop iterates over the content of a variable that is a message, or over a variable or macro
/// parameter that holds such a content. Where vLLM's analysis fails, for a target that is not one name, it takes a text.
pub(super) fn of_vllm(outline: &Outline) -> ContentFormat {
    let loops_over_parts = message_names(outline).and_then(|messages| finds_loop_over_content(outline, &messages));
    if loops_over_parts == Some(true) { ContentFormat::Parts } else { ContentFormat::Text }
}

/// Names of loop variables that are messages. `None` if vLLM's analysis fails.
fn message_names(outline: &Outline) -> Option<Vec<&str>> {
    let mut lists = vec![MESSAGES];
    let mut seen = HashSet::from([MESSAGES]);
    let mut at = 0;
    while let Some(list) = lists.get(at).copied() {
        for assignment in outline.assignments.iter().filter(|assignment| assignment.value.is_of(list)) {
            let target = assignment.target.as_deref()?;
            if seen.insert(target) {
                lists.push(target);
            }
        }
        at += 1;
    }
    let is_over_messages = |items: &Read| lists.iter().any(|list| items.is_of(list));
    let loops = outline.loops.iter().filter(|it| it.items.as_ref().is_some_and(is_over_messages));
    loops.map(|it| it.target.as_deref()).collect()
}

/// Whether a loop iterates over content. `None` if its target is not one name.
fn finds_loop_over_content(outline: &Outline, messages: &[&str]) -> Option<bool> {
    let is_content = |read: &Read| messages.iter().any(|message| read.is_key_of(message, CONTENT));
    let parameters = content_parameters(outline, is_content);
    let over_content = outline.loops.iter().find(|it| match &it.items {
        Some(read) if is_content(read) => true,
        Some(Read::Variable(name)) => {
            // The innermost macro that is called with a content decides.
            let of_macro = it.macros.iter().rev().map(|&at| &parameters[at]).find(|names| !names.is_empty());
            of_macro.is_some_and(|names| names.contains(name.as_str())) || (it.macros.is_empty() && name == CONTENT)
        }
        _ => false,
    });
    over_content.map_or(Some(false), |found| found.target.as_ref().map(|_| true))
}

/// The parameters of each macro that some call passes a content to.
fn content_parameters(outline: &Outline, is_content: impl Fn(&Read) -> bool) -> Vec<HashSet<&str>> {
    let is_content = |read: &Option<Read>| read.as_ref().is_some_and(&is_content);
    let of_macro = |it: &Macro| -> HashSet<usize> {
        let calls = outline.calls.iter().filter(|call| call.name == it.name);
        let positions = calls.flat_map(|call| {
            let positional = call.positional.iter().enumerate().filter(|(_, read)| is_content(read)).map(|(at, _)| at);
            let named = call.named.iter().filter(|(_, read)| is_content(read));
            let named = named.filter_map(|(name, _)| it.parameters.iter().position(|parameter| parameter == name));
            positional.chain(named).collect::<Vec<_>>()
        });
        positions.filter(|&at| at < it.parameters.len()).collect()
    };
    let macros = outline.macros.iter();
    macros.map(|it| of_macro(it).into_iter().map(|at| it.parameters[at].as_str()).collect()).collect()
}

/// Words by which SGLang recognises a template of a multimodal model.
const MULTIMODAL_WORDS: [&str; 4] = ["image", "audio", "video", "vision"];

/// Names of variables that SGLang treats as messages.
const MESSAGE_NAMES: [&str; 3] = ["message", "msg", "m"];

/// SGLang's rule: parts if the template has a word of multimodal models, or loops over the content of a variable that is
/// named like a message.
pub(super) fn of_sglang(source: &str, outline: &Outline) -> ContentFormat {
    let is_content = |read: &Read| MESSAGE_NAMES.iter().any(|message| read.is_key_of(message, CONTENT));
    let loops_over_parts = outline.loops.iter().any(|it| it.items.as_ref().is_some_and(is_content));
    if loops_over_parts || MULTIMODAL_WORDS.iter().any(|word| source.contains(word)) {
        ContentFormat::Parts
    } else {
        ContentFormat::Text
    }
}
