//! Token ids of texts.

use std::path::Path;

use flash_indexer_prompt::tokenize::{PromptOptions, SpecialTokens, TokenizerPool};
use serde_json::json;
use tempfile::tempdir;

use crate::support::{ids, pool_in, text, tiny_tokenizer, write_model};

fn ids_with(pool: &TokenizerPool, prompt: &str, options: PromptOptions) -> Vec<u32> {
    pool.tokenize_with("model", text(prompt), options).expect("tokens").ids
}

#[test]
fn special_tokens_are_added_to_a_text_unless_omitted() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("model"), &tiny_tokenizer());
    let pool = pool_in(root.path());
    let with = |special_tokens| PromptOptions { special_tokens, ..PromptOptions::default() };
    assert_eq!(ids(&pool, "model", "one two five"), [0, 3, 4, 2]);
    assert_eq!(ids_with(&pool, "one two", with(SpecialTokens::Added)), [0, 3, 4]);
    assert_eq!(ids_with(&pool, "one two", with(SpecialTokens::Omitted)), [3, 4]);
    assert_eq!(ids_with(&pool, "<s>one", with(SpecialTokens::Omitted)), [0, 3], "written out");
    assert_eq!(ids(&pool, "model", ""), [0]);
}

#[test]
fn the_last_tokens_are_kept_behind_the_one_that_begins_a_sequence() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("model"), &tiny_tokenizer());
    let pool = pool_in(root.path());
    let keep =
        |kept, special_tokens| PromptOptions { special_tokens, keep_last: Some(kept), ..PromptOptions::default() };
    let prompt = "one two three four";
    for (kept, expected) in
        [(9, vec![0, 3, 4, 5, 6]), (5, vec![0, 3, 4, 5, 6]), (3, vec![0, 5, 6]), (1, vec![0]), (0, vec![])]
    {
        assert_eq!(ids_with(&pool, prompt, keep(kept, SpecialTokens::Added)), expected, "{kept}");
    }
    for (kept, expected) in [(4, vec![3, 4, 5, 6]), (3, vec![4, 5, 6]), (1, vec![6]), (0, vec![])] {
        assert_eq!(ids_with(&pool, prompt, keep(kept, SpecialTokens::Omitted)), expected, "{kept}");
    }
    assert_eq!(ids_with(&pool, "one <s> two", keep(2, SpecialTokens::Added)), [0, 4], "what is written out is content");
}

#[test]
fn truncation_and_padding_of_the_file_are_not_applied() {
    let root = tempdir().expect("a directory");
    let mut tokenizer = tiny_tokenizer();
    tokenizer["truncation"] = json!({"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    tokenizer["padding"] = json!({"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 1,
                                  "pad_type_id": 0, "pad_token": "</s>"});
    write_model(&root.path().join("model"), &tokenizer);
    assert_eq!(ids(&pool_in(root.path()), "model", "one two three four"), [0, 3, 4, 5, 6]);
}

#[test]
fn the_text_of_tokens_is_cut_between_characters() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenize/models");
    let pool = pool_in(&models);
    let omitted = PromptOptions { special_tokens: SpecialTokens::Omitted, ..PromptOptions::default() };
    for model in ["byte_level", "sentence_pieces"] {
        let prompt = "One two,\n three: é 語 🙂 end";
        let ids = pool.tokenize_with(model, text(prompt), omitted).expect("tokens").ids;
        let (_, whole) = pool.decode(model, None, (&ids, 0)).expect("a text");
        assert_eq!(whole.trim_start(), prompt, "{model}");
        for at in 0..=ids.len() + 1 {
            let (before, own) = pool.decode(model, None, (&ids, at)).expect("a text");
            assert_eq!(before.clone() + &own, whole, "{model}, {at}");
            assert!(!before.contains('\u{fffd}') && (at < ids.len() || own.is_empty()), "{model}, {at}: {before:?}");
        }
        let (_, end) = pool.decode(model, None, (&ids[ids.len() - 1..], 0)).expect("a text");
        assert!(!end.is_empty() && whole.ends_with(&end), "{model}: {end:?}");
    }
    let (_, unknown) = pool.decode("byte_level", None, (&[u32::MAX], 0)).expect("a text");
    assert_eq!(unknown, "[unknown token 4294967295]");
    assert!(pool.decode("unknown", None, (&[1], 0)).is_err());
}
