//! Prompts of DeepSeek-V4, which vLLM writes with the encoder of the model's repository.

use super::deepseek::{check_variables, counted_tools_of};
use super::deepseek_turns::{Dialect, Settings, write};
use super::variables::variable;
use crate::chat::PreparedChat;
use crate::error::PrepareError;

const DIALECT: Dialect =
    Dialect { tools: include_str!("deepseek_v4_tools.txt"), calls: "tool_calls", tag_prefix: "", marks_systems: false };
const EFFORT_HIGH: &str = include_str!("deepseek_v4_effort_high.txt");
const EFFORT_MAX: &str = include_str!("deepseek_v4_effort_max.txt");

/// Renders a chat.
pub(super) fn render(prepared: &PreparedChat) -> Result<String, PrepareError> {
    check_variables(prepared)?;
    let tools = counted_tools_of(prepared)?;
    let mut settings = Settings::of(prepared);
    let effort = variable(prepared, "reasoning_effort");
    settings.preamble = match effort.as_ref().map(|effort| effort.as_str()) {
        Some(Some("none")) => {
            settings.thinks = false;
            String::new()
        }
        Some(Some("max")) => EFFORT_MAX.to_owned(),
        Some(Some("low" | "minimal" | "medium")) => String::new(),
        _ => EFFORT_HIGH.to_owned(),
    };
    write(&DIALECT, settings, &prepared.request.messages, &tools)
}
