//! Scores of a Unigram vocabulary, as the Python package `tokenizers` reads them.
//!
//! That package is built with the default floats of `serde_json`: about one in seven scores is one unit in the last place
//! off. The feature `float_roundtrip`, which chat templates need, makes them exact here, for the `tokenizers` crate as well.
//! Two tokenizations of a word whose scores are mathematically equal then compare differently.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::Tokenizer;
use tokenizers::models::ModelWrapper;
use tokenizers::models::unigram::Unigram;

/// The model in `tokenizer.json`.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    vocab: Vec<(Cow<'a, str>, &'a RawValue)>,
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: bool,
}

/// Replaces the scores of a Unigram model, which was read from `file`.
pub(super) fn read_as_python(tokenizer: &mut Tokenizer, file: &[u8]) -> Result<(), String> {
    if !matches!(tokenizer.get_model(), ModelWrapper::Unigram(_)) {
        return Ok(());
    }
    let File { model } = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    let powers: Vec<f64> = (0..=308).map(|power| format!("1e{power}").parse().unwrap_or(f64::INFINITY)).collect();
    let score = |(token, written): (Cow<str>, &RawValue)| {
        let score = read_score(written.get(), &powers).ok_or_else(|| format!("{token:?} has no score"))?;
        Ok((token.into_owned(), score))
    };
    let vocabulary = model.vocab.into_iter().map(score).collect::<Result<_, String>>()?;
    let model = Unigram::from(vocabulary, model.unk_id, model.byte_fallback).map_err(|error| error.to_string())?;
    tokenizer.with_model(model);
    Ok(())
}

/// Reads a JSON number as `serde_json` does without `float_roundtrip`: the digits that fit into 64 bits, rounded to a float, and
/// multiplied or divided by a power of ten.
fn read_score(written: &str, powers: &[f64]) -> Option<f64> {
    let (is_negative, number) = written.strip_prefix('-').map_or((false, written), |number| (true, number));
    let (mantissa, power) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (mut significand, mut exponent) = (0_u64, 0_i32);
    let (mut is_full, mut is_fraction) = (false, false);
    for byte in mantissa.bytes() {
        if byte == b'.' {
            (is_full, is_fraction) = (false, true);
            continue;
        }
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        let longer = significand.checked_mul(10).and_then(|longer| longer.checked_add(digit.into()));
        match longer.filter(|_| !is_full) {
            Some(longer) => {
                significand = longer;
                exponent -= i32::from(is_fraction);
            }
            None => {
                is_full = true;
                exponent += i32::from(!is_fraction);
            }
        }
    }
    exponent = exponent.saturating_add(power.parse::<i32>().ok()?);
    let mut score = significand as f64;
    while exponent < -308 && score != 0.0 {
        score /= powers[308];
        exponent += 308;
    }
    if score != 0.0 {
        let power = powers.get(exponent.unsigned_abs() as usize)?;
        score = if exponent >= 0 { score * power } else { score / power };
    }
    score.is_finite().then_some(if is_negative { -score } else { score })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Results of the Python package for scores, and for words with two equal tokenizations: `tests/tokenize/unigram_scores.py`.
    fn expected() -> Value {
        serde_json::from_str(include_str!("../../../tests/tokenize/unigram_scores.json")).expect("JSON")
    }

    #[test]
    fn scores_are_those_of_the_python_package() {
        let powers: Vec<f64> = (0..=308).map(|power| format!("1e{power}").parse().expect("a power")).collect();
        let mut inexact = 0;
        for pair in expected()["scores"].as_array().expect("scores") {
            let (written, bits) = (pair[0].as_str().expect("a number"), pair[1].as_str().expect("bits"));
            let score = read_score(written, &powers).expect("a score");
            assert_eq!(format!("{:016x}", score.to_bits()), bits, "{written}");
            inexact += usize::from(written.parse() != Ok(score));
        }
        assert!(inexact > 50, "{inexact}");
    }

    #[test]
    fn ties_are_broken_as_by_the_python_package() {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode_fast("ab", false).expect("tokens").get_ids().to_vec();
        let mut changed = 0;
        for tie in expected()["ties"].as_array().expect("ties") {
            let [a, b, ab] = [0, 1, 2].map(|at| tie[at].as_str().expect("a number"));
            let model = json!({"type": "Unigram", "unk_id": 0, "vocab": "VOCABULARY", "byte_fallback": false});
            let vocabulary = format!("[[\"<unk>\", 0.0], [\"a\", {a}], [\"b\", {b}], [\"ab\", {ab}]]");
            let file = json!({"version": "1.0", "added_tokens": [], "model": model}).to_string();
            let file = file.replace("\"VOCABULARY\"", &vocabulary);
            let mut tokenizer = Tokenizer::from_bytes(&file).expect("a tokenizer");
            let exact = ids(&tokenizer);
            read_as_python(&mut tokenizer, file.as_bytes()).expect("scores");
            assert_eq!(json!(ids(&tokenizer)), tie[3], "{a} + {b} or {ab}");
            changed += usize::from(exact != ids(&tokenizer));
        }
        assert!(changed > 0, "exact scores break these ties in another way");
    }
}
