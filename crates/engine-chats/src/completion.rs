//! The `prompt` of an OpenAI text completion.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

use super::lax::{IntegerVisitor, LaxInteger, integer_of_text};

/// The prompts of a text completion, as `pydantic` reads them for the engines' request models.
///
/// In a list of texts only, each text is a prompt. In any other list a text is a token, and so is a float without a fraction or a
/// truth value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionPrompt {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of lists of tokens.
    TokenLists(Vec<Vec<u32>>),
}

const EXPECTED: &str = "a text or a list of token ids, or a list with one of them";

impl<'de> Deserialize<'de> for CompletionPrompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = CompletionPrompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<CompletionPrompt, E> {
        Ok(CompletionPrompt::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<CompletionPrompt, E> {
        Ok(CompletionPrompt::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<CompletionPrompt, A::Error> {
        let wrong = || A::Error::custom(format!("its items are of several types; send {EXPECTED}"));
        let mut prompt = CompletionPrompt::Tokens(Vec::new());
        while let Some(item) = items.next_element()? {
            match (&mut prompt, item) {
                (CompletionPrompt::Tokens(tokens), Item::Text(text)) if tokens.is_empty() => {
                    prompt = CompletionPrompt::Texts(vec![text]);
                }
                (CompletionPrompt::Tokens(tokens), Item::Tokens(list)) if tokens.is_empty() => {
                    prompt = CompletionPrompt::TokenLists(vec![list]);
                }
                (CompletionPrompt::Tokens(tokens), Item::Text(text)) => {
                    tokens.push(token_of_text(&text).ok_or_else(wrong)?);
                }
                (CompletionPrompt::Tokens(tokens), Item::Token(token)) => tokens.push(token),
                (CompletionPrompt::Texts(texts), Item::Text(text)) => texts.push(text),
                (CompletionPrompt::Texts(texts), Item::Token(token)) => {
                    let tokens = texts.iter().map(|text| token_of_text(text)).chain([Some(token)]);
                    prompt = CompletionPrompt::Tokens(tokens.collect::<Option<_>>().ok_or_else(wrong)?);
                }
                (CompletionPrompt::TokenLists(lists), Item::Tokens(list)) => lists.push(list),
                _ => return Err(wrong()),
            }
        }
        Ok(prompt)
    }
}

/// An item of a list of prompts or tokens.
enum Item {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id, a text or a list of token ids")
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Item, E> {
        Ok(Item::Token(u32::from(truth)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Item, E> {
        token_of(number).map(Item::Token)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Item, E> {
        token_of(number).map(Item::Token)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Item, E> {
        IntegerVisitor.visit_f64(number).and_then(token_of).map(Item::Token)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let mut tokens = Vec::new();
        while let Some(LaxInteger(number)) = items.next_element()? {
            tokens.push(token_of(number)?);
        }
        Ok(Item::Tokens(tokens))
    }
}

fn token_of<E: Error>(number: impl TryInto<u32> + Copy + fmt::Display) -> Result<u32, E> {
    number.try_into().map_err(|_| E::invalid_value(Unexpected::Other(&format!("{number}")), &"a token id of 32 bits"))
}

fn token_of_text(text: &str) -> Option<u32> {
    integer_of_text(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::CompletionPrompt;

    fn read(json: &str) -> Option<CompletionPrompt> {
        let from_text = serde_json::from_str(json).ok();
        let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(serde_json::from_value(value).ok(), from_text, "{json}");
        from_text
    }

    /// Results of pydantic 2.14 for each value with the models of vLLM 0.32 and SGLang 0.5.23.
    #[test]
    fn prompts_are_read_as_pydantic_reads_them() {
        let tokens = [
            ("[]", &[][..]),
            ("[1.0]", &[1]),
            ("[true, false]", &[1, 0]),
            ("[1, \"2\"]", &[1, 2]),
            ("[\"1\", \"2.0\", 3]", &[1, 2, 3]),
            ("[\" 3 \", 3]", &[3, 3]),
            ("[\"1\", true]", &[1, 1]),
            ("[4294967295]", &[u32::MAX]),
        ];
        for (json, expected) in tokens {
            assert_eq!(read(json), Some(CompletionPrompt::Tokens(expected.to_vec())), "{json}");
        }
        for (json, expected) in [("[\"1\"]", &["1"][..]), ("[\"-1\"]", &["-1"]), ("[\"a\", \"1\"]", &["a", "1"])] {
            let texts = expected.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(read(json), Some(CompletionPrompt::Texts(texts)), "{json}");
        }
        for (json, expected) in [
            ("[[]]", vec![vec![]]),
            ("[[\"1\"]]", vec![vec![1]]),
            ("[[1.0, \"2\", true]]", vec![vec![1, 2, 1]]),
            ("[[1], [\"2\"]]", vec![vec![1], vec![2]]),
        ] {
            assert_eq!(read(json), Some(CompletionPrompt::TokenLists(expected)), "{json}");
        }
        assert_eq!(read("\"5\""), Some(CompletionPrompt::Text("5".to_owned())));
        let rejected = [
            "5",
            "true",
            "1.0",
            "{}",
            "[null]",
            "[1.5]",
            "[1e30]",
            "[{}]",
            "[-1]",
            "[[-1]]",
            "[-1, \"1\"]",
            "[\"a\", 1]",
            "[1, \"a\"]",
            "[[\"a\"]]",
            "[[1], 2]",
            "[1, [2]]",
            "[\"1\", [2]]",
            "[[1], \"2\"]",
            "[[[\"1\"]]]",
            // No engine has a token id of this size.
            "[4294967296]",
        ];
        for json in rejected {
            assert_eq!(read(json), None, "{json}");
        }
    }
}
