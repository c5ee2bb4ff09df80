//! Fast parsing of bodies that consist mostly of a list of tokens.
//!
//! A general JSON parser reads such a list digit by digit, which costs more than the rest of a query. This module cuts the
//! list out, reads it eight bytes at a time, and leaves the rest of the body to the parser.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::Api;
use super::error::ApiError;
use super::extract::{self, parse};

/// Fields of a body with a prompt under `token_ids`.
pub(super) trait PromptBodyFields: DeserializeOwned {
    /// The token list.
    fn token_ids(&mut self) -> &mut Vec<u32>;
}

/// Extractor of a JSON body with a prompt.
pub(super) struct PromptBody<T>(pub(super) T);

impl<T: PromptBodyFields> FromRequest<Arc<Api>> for PromptBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        read(&extract::bytes(request, api).await?).map(Self)
    }
}

/// Parses a body. The result equals the general parser's: any unusual body is left to it, so every error is its own.
pub(super) fn read<T: PromptBodyFields>(body: &[u8]) -> Result<T, ApiError> {
    let Some(cut) = BodyWithoutTokens::of(body) else { return parse(body) };
    match serde_json::from_slice::<T>(&cut.rest) {
        Ok(mut read) => {
            *read.token_ids() = cut.tokens;
            Ok(read)
        }
        Err(_) => parse(body),
    }
}

const KEY: &[u8] = b"\"token_ids\"";

/// Body and the list of tokens that was cut out of it.
#[derive(Debug, PartialEq)]
struct BodyWithoutTokens {
    tokens: Vec<u32>,
    /// The body with an empty list.
    rest: Vec<u8>,
}

impl BodyWithoutTokens {
    /// Cuts the list out. Returns none unless the key occurs in the body exactly once, outside of a string with escapes,
    /// and a list of nothing but tokens follows. If the key belongs to a nested object, the parser rejects the rest for the
    /// missing field, and the body is parsed again as a whole.
    fn of(body: &[u8]) -> Option<Self> {
        let key = find_key(body)?;
        let mut list = List { bytes: body, at: key + KEY.len() };
        list.expect(b':')?;
        list.expect(b'[')?;
        let start = list.at;
        let tokens = list.tokens()?;
        let (before, after) = (&body[..start], &body[list.at - 1..]);
        if after.contains(&b'\\') || before.contains(&b'\\') || find_key(after).is_some() {
            return None;
        }
        Some(Self { tokens, rest: [before, after].concat() })
    }
}

fn find_key(body: &[u8]) -> Option<usize> {
    body.windows(KEY.len()).position(|window| window == KEY)
}

/// Cursor in a list of tokens.
struct List<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl List<'_> {
    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        self.skip_space();
        (*self.bytes.get(self.at)? == wanted).then(|| self.at += 1)
    }

    /// Reads the tokens and the end of the list.
    fn tokens(&mut self) -> Option<Vec<u32>> {
        // A token and its comma have at least two bytes, and typically six.
        let mut tokens = Vec::with_capacity((self.bytes.len() - self.at) / 6);
        if self.expect(b']').is_some() {
            return Some(tokens);
        }
        loop {
            self.skip_space();
            tokens.push(self.token()?);
            self.skip_space();
            let delimiter = *self.bytes.get(self.at)?;
            self.at += 1;
            match delimiter {
                b',' => {}
                b']' => return Some(tokens),
                _ => return None,
            }
        }
    }

    /// Reads a number without sign, fraction, exponent or leading zeros.
    fn token(&mut self) -> Option<u32> {
        let rest = &self.bytes[self.at..];
        let (token, digits) = match rest.first_chunk().and_then(up_to_seven_digits) {
            Some(found) => found,
            None => {
                let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
                (str::from_utf8(&rest[..digits]).ok()?.parse().ok()?, digits)
            }
        };
        self.at += digits;
        (digits == 1 || rest[0] != b'0').then_some(token)
    }
}

/// A number that ends within eight bytes, and its count of digits. All bytes are processed at once without a branch on
/// the length, because lengths of tokens are hard to predict.
fn up_to_seven_digits(bytes: &[u8; 8]) -> Option<(u32, usize)> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let digits = u64::from_le_bytes(*bytes) ^ (EACH * u64::from(b'0'));
    // Sets the top bit of each byte that is no digit. A carry may falsify bytes after the first such byte.
    let others = (digits.wrapping_add(EACH * (0x7f - 9)) | digits) & (EACH * 0x80);
    let count = others.trailing_zeros() / 8;
    if !(1..=7).contains(&count) {
        return None;
    }
    // Shifts in leading zeros, then combines digits to pairs, pairs to fours, and fours to the number.
    let digits = digits << (64 - 8 * count);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    let all = fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff;
    Some((all as u32, count as usize))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct ExplainContext {
        token_ids: Vec<u32>,
        name: Option<String>,
    }

    impl PromptBodyFields for ExplainContext {
        fn token_ids(&mut self) -> &mut Vec<u32> {
            &mut self.token_ids
        }
    }

    fn number() -> impl Strategy<Value = String> {
        let token = any::<u32>().prop_flat_map(|max| 0..=max).prop_map(|token| token.to_string());
        let odd = ["-1", "01", "1.5", "1e3", "4294967296", "null", "\"1\"", "", "[1]", "1 2", "99999999", "0"];
        prop_oneof![50 => token, 1 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned)]
    }

    fn space() -> impl Strategy<Value = &'static str> {
        prop_oneof![5 => Just(""), 3 => Just(" "), 1 => Just("\n\t ")]
    }

    fn list() -> impl Strategy<Value = String> {
        let item = (space(), number(), space()).prop_map(|(before, number, after)| format!("{before}{number}{after}"));
        prop::collection::vec(item, 0..20).prop_map(|items| format!("[{}]", items.join(",")))
    }

    fn member() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => (space(), list()).prop_map(|(space, list)| format!("\"token_ids\"{space}:{space}{list}")),
            2 => Just(r#""name":"n""#.to_owned()),
            1 => Just(r#""name":"\"token_ids\":[1]""#.to_owned()),
            1 => Just(r#""token\u005fids":[7]"#.to_owned()),
            1 => list().prop_map(|list| format!(r#""other":{{"token_ids":{list}}}"#)),
            1 => Just(r#""x\"token_ids":[1]"#.to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn every_body_is_parsed_as_the_general_parser_parses_it(
            members in prop::collection::vec(member(), 0..4),
            end in prop_oneof![9 => Just("}"), 1 => Just(""), 1 => Just("} x")],
        ) {
            let body = format!("{{{}{end}", members.join(","));
            let parsed = serde_json::from_str::<ExplainContext>(&body).ok();
            prop_assert_eq!(read::<ExplainContext>(body.as_bytes()).ok(), parsed, "{}", body);
        }
    }

    #[test]
    fn the_token_list_of_a_usual_body_is_cut_out() {
        let cut = BodyWithoutTokens::of(br#"{"name": "n", "token_ids": [1, 23,4294967295 ,128000], "top_k": 1}"#);
        let rest = br#"{"name": "n", "token_ids": [], "top_k": 1}"#.to_vec();
        assert_eq!(cut, Some(BodyWithoutTokens { tokens: vec![1, 23, u32::MAX, 128_000], rest }));
        assert_eq!(BodyWithoutTokens::of(br#"{"token_ids":[]}"#).map(|cut| cut.tokens), Some(Vec::new()));
    }

    #[test]
    fn tokens_of_every_length_are_parsed() {
        for token in (0..7).flat_map(|power| [10_u32.pow(power) - 1, 10_u32.pow(power), 1_234_567 / 10_u32.pow(power)])
        {
            let mut bytes = *b",,,,,,,,";
            let text = token.to_string();
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            assert_eq!(up_to_seven_digits(&bytes), Some((token, text.len())));
        }
        assert_eq!(up_to_seven_digits(b"12345678"), None);
        assert_eq!(up_to_seven_digits(b"1\xff\xff\xff\xff\xff\xff\xff"), Some((1, 1)));
        assert_eq!(up_to_seven_digits(b",1234567"), None);
    }
}
