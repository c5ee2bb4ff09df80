//! Renders one chat a line: reads `{"template": …, "request": …}` from standard input, and writes `{"text": …}` or
//! `{"error": …}`. `scripts/fuzz-chat-templates` compares the lines with those of `transformers`.

use std::io::{BufRead, Write};

use chat_template::{ChatRequest, ChatTemplates};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    template: String,
    request: ChatRequest,
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let templates = ChatTemplates::none();
    for line in std::io::stdin().lock().lines() {
        let rendered = serde_json::from_str(&line?).map_err(|error| error.to_string()).and_then(|case: Case| {
            let request = ChatRequest { chat_template: Some(case.template), ..case.request };
            templates.render(&request).map_err(|error| error.to_string())
        });
        let answer = match rendered {
            Ok(text) => serde_json::json!({ "text": text }),
            Err(error) => serde_json::json!({ "error": error }),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
