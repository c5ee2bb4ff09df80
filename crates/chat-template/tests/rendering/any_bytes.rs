//! Arbitrary bytes as a template and a chat, and the invariants of each rendering.
//!
//! ```text
//!  input: template, ended by a zero byte | request, in JSON; one message if it is absent or no request
//! ```

use chat_template::{ChatError, ChatRequest, ChatTemplates, Effort, Messages};

/// Longest text of a brief rendering, in bytes.
const BRIEF_TEXT_BYTES_MAX: usize = 8 << 20;

/// Renders; panics if a limit is exceeded, or if the effort changes the result.
pub(crate) fn play(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let Some(Ok(template)) = parts.next().map(str::from_utf8) else { return };
    let request = parts.next().and_then(|json| serde_json::from_slice(json).ok());
    let request: ChatRequest = request.unwrap_or_else(|| {
        let usual = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
        serde_json::from_str(usual).expect("a request")
    });
    let has_tools = request.tools.is_some();
    let request = ChatRequest { chat_template: Some(template.to_owned()), ..request };
    let templates = ChatTemplates::none();
    let inspected = templates.inspect(Some(template), has_tools, |source, _| assert_eq!(source, template));
    for messages in [Messages::Completed, Messages::AsGiven] {
        let brief = templates.render_within(&request, messages, Effort::Brief);
        match &brief {
            Ok(text) => assert!(text.len() <= BRIEF_TEXT_BYTES_MAX, "{} bytes", text.len()),
            Err(ChatError::Syntax { .. }) => assert!(inspected.is_err()),
            Err(ChatError::TooExpensive { .. }) => continue,
            Err(_) => {}
        }
        // Two renderings may fall into two different seconds.
        if !template.contains("strftime_now") {
            let full = templates.render_within(&request, messages, Effort::Full);
            assert_eq!(full.map_err(|error| error.to_string()), brief.map_err(|error| error.to_string()));
        }
    }
}
