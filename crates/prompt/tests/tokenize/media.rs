//! Chats with media: the ids that certainly precede the first media part.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use flash_indexer_engine_chats::{Chat, ChatEngine};
use flash_indexer_prompt::tokenize::{Cutting, Prompt, PromptOptions, SpecialTokens, Tokenized, TokenizerPool};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::pieces::{PARTS, random_numbers, random_text, reference, tokenizers};
use crate::support::{ids, pool_in, tiny_tokenizer, write_model};

/// A template that prints media where they are.
const IN_PLACE: &str = "{% for message in messages %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}\
    {% else %}<{{ part.type }}>{% endif %}{% endfor %}{% endfor %}";

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn image() -> Value {
    json!({ "type": "image_url", "image_url": { "url": "data:x" } })
}

fn prompt(messages: &Value, more: &Value, engine: ChatEngine) -> Prompt {
    let mut body = json!({ "messages": messages });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    Prompt::Chat(Box::new(
        Chat::from_body(body.to_string().as_bytes(), engine, SystemTime::UNIX_EPOCH).expect("a chat"),
    ))
}

/// A model with this template.
fn model(root: &Path, tokenizer: &Value, template: &str) {
    let folder = root.join("model");
    write_model(&folder, tokenizer);
    fs::write(folder.join("chat_template.jinja"), template).expect("a file");
}

#[test]
fn ids_before_media_are_those_of_every_prompt_that_begins_so() {
    for (number, (name, tokenizer, cutting)) in tokenizers().into_iter().enumerate() {
        let root = tempdir().expect("a directory");
        model(root.path(), &tokenizer, IN_PLACE);
        let pool = pool_in(root.path());
        let reference = reference(tokenizer.to_string().as_bytes());
        let mut next = random_numbers(number as u64);
        let mut texts: Vec<String> = (0..60).map(|_| random_text(&mut next, 40)).collect();
        texts.extend((0..8).map(|_| random_text(&mut next, 4_000)));
        // Each part as the last one before the media.
        texts.extend(PARTS.iter().map(|part| format!("The longest prefix <|im_end|> that a worker{part}")));
        let mut cases: Vec<(String, Vec<String>)> = texts
            .into_iter()
            .map(|begin| {
                let rests =
                    ["<image>", "\n<|im_start|>", " "].into_iter().chain((0..8).map(|_| PARTS[next(PARTS.len())]));
                let mut rests: Vec<String> = rests.map(str::to_owned).collect();
                rests.push(random_text(&mut next, 60));
                (begin, rests)
            })
            .collect();
        // Added tokens that begin in the text and end after it.
        for token in tokenizer["added_tokens"].as_array().expect("a list") {
            let content = token["content"].as_str().expect("a text");
            for at in (1..content.len()).filter(|at| content.is_char_boundary(*at)) {
                let (begin, rest) = content.split_at(at);
                cases.push((format!("The longest prefix {begin}"), vec![rest.to_owned()]));
                cases.push((format!("The longest prefix{begin}"), vec![rest.to_owned()]));
            }
        }
        let mut known = 0;
        for (begin, rests) in &cases {
            for (special_tokens, are_added) in [(SpecialTokens::Added, true), (SpecialTokens::Omitted, false)] {
                let messages = json!([{ "role": "user", "content": [text(begin), image(), text("behind")] }]);
                let options = PromptOptions { special_tokens, ..PromptOptions::default() };
                let chat = prompt(&messages, &json!({}), ChatEngine::Vllm);
                let Tokenized { ids, media, .. } = pool.tokenize_with("model", chat, options).expect("ids");
                assert_eq!(media, Some("image_url"));
                known += ids.len();
                for rest in rests {
                    let whole = reference.encode_fast(format!("{begin}{rest}"), are_added).expect("ids");
                    assert!(whole.get_ids().starts_with(&ids), "{name}: {begin:?} before {rest:?}: {ids:?}");
                }
            }
        }
        assert_eq!(known == 0, cutting == Cutting::Nowhere, "{name}: {known}");
    }
}

/// A pool with a model whose words are tokens: `one` is 3, `two` 4 and so on, and `|` is cut around.
fn words(template: &str) -> (TempDir, TokenizerPool) {
    let root = tempdir().expect("a directory");
    let mut tokenizer = tiny_tokenizer();
    let bar = json!({"id": 8, "content": "|", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    tokenizer["added_tokens"].as_array_mut().expect("a list").push(bar);
    model(root.path(), &tokenizer, template);
    let pool = pool_in(root.path());
    (root, pool)
}

const BAR: u32 = 8;

/// Two messages, the second with media between texts.
fn messages() -> Value {
    json!([{ "role": "user", "content": [text("one |")] }, { "role": "user", "content": [text("two |"), image(), text("three |"), image()] }])
}

#[test]
fn media_are_where_the_template_or_the_engine_puts_them() {
    let texts = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let as_names = "{% for m in messages %}{% for part in m.content %}{{ part.text | default('<image>') }}{% endfor %}{% endfor %}";
    let first_in_message = "{% for m in messages %}{% for part in m.content if part.type != 'text' %}<image>{% endfor %}\
        {% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}{% endfor %}";
    let first_of_all = "{% for m in messages %}{% for part in m.content if part.type != 'text' %}<image>{% endfor %}{% endfor %}\
        {% for m in messages %}{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}{% endfor %}";
    let counted = "{% for m in messages %}{% for part in m.content if part.type == 'image' %}two{% endfor %}{% endfor %}|\
        {% for m in messages %}{% for part in m.content %}{{ part.text or '' }}{% endfor %}{% endfor %}";
    let one = vec![3, BAR];
    let both = vec![3, BAR, 4, BAR];
    for (template, engine, expected) in [
        (IN_PLACE, ChatEngine::Vllm, &both),
        (as_names, ChatEngine::Vllm, &both),
        (IN_PLACE, ChatEngine::Sglang, &both),
        // The engine puts placeholders before the texts of their message.
        (texts, ChatEngine::Vllm, &one),
        (texts, ChatEngine::TensorRtLlm, &one),
        // The engine's processor finds a place.
        (texts, ChatEngine::Sglang, &vec![]),
        (first_in_message, ChatEngine::Vllm, &one),
        (first_of_all, ChatEngine::Vllm, &vec![]),
        (counted, ChatEngine::Vllm, &vec![]),
    ] {
        let (_root, pool) = words(template);
        let tokenized = pool.tokenize("model", prompt(&messages(), &json!({}), engine)).expect("ids");
        assert_eq!((&tokenized.ids, tokenized.media), (expected, Some("image_url")), "{engine:?} {template}");
    }
}

#[test]
fn nothing_is_known_where_everything_may_depend_on_media() {
    let fails =
        "{{ raise_exception('not text') if messages[1].content | selectattr('text', 'equalto', '\u{e000}') | list }}";
    let (root, pool) = words(&format!("{IN_PLACE}{fails}"));
    let ids_with = |more: &Value| {
        let tokenized = pool.tokenize("model", prompt(&messages(), more, ChatEngine::Vllm)).expect("ids");
        assert_eq!(tokenized.media, Some("image_url"));
        tokenized.ids
    };
    assert!(ids_with(&json!({})).is_empty(), "the template fails with a text in place of an image");
    fs::write(root.path().join("model/chat_template.jinja"), IN_PLACE).expect("a file");
    assert_eq!(ids_with(&json!({})), [3, BAR, 4, BAR]);
    assert_eq!(ids_with(&json!({ "truncate_prompt_tokens": -1, "add_special_tokens": true })), [0, 3, BAR, 4, BAR]);
    assert!(
        ids_with(&json!({ "truncate_prompt_tokens": 3, "add_special_tokens": true })).is_empty(),
        "the end is kept"
    );
    let config = json!({ "architectures": ["PaliGemmaForConditionalGeneration"] }).to_string();
    fs::write(root.path().join("model/config.json"), config).expect("a file");
    // The tokenizer is read again.
    write_model(&root.path().join("model"), &tiny_tokenizer());
    assert!(ids_with(&json!({ "add_special_tokens": true })).is_empty(), "the processor puts images first");
    assert_eq!(ids(&pool, "model", "one"), [0, 3], "other prompts are known");
}

#[test]
fn parts_that_only_the_engine_knows_and_templates_that_fail_are_errors() {
    let (_root, pool) =
        words("{% for m in messages %}{% for part in m.content %}{{ part.text + '' }}{% endfor %}{% endfor %}");
    let file = json!([{ "role": "user", "content": [{ "type": "file", "file": {} }] }]);
    for (messages, why) in [(file, "\"file\""), (messages(), "undefined")] {
        let error = pool.tokenize("model", prompt(&messages, &json!({}), ChatEngine::Vllm)).expect_err("no prompt");
        assert!(error.to_string().contains(why), "{error}");
    }
}
