//! Commands and their options.

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::{cell, head};
use crate::Arguments;
use flash_indexer_commands::{TOKEN_HELP, TOKEN_VARIABLE, sends_token};

/// Beginning of the options of the feature `hub`, which the pages leave out: a program is built with or without them.
const HUB_OPTIONS: &str = "tokenizer-hub";

pub(super) fn page() -> String {
    let mut page = head("Commands and options", "the program's parser");
    page.push_str(
        "\nA program that is built with the feature `hub` also has `serve --tokenizer-hub` and its options, which its help lists. The \
         sections of [Operations](../operations.md) say when to use an option. Below an option are its default and the environment \
         variable that has the same effect.\n",
    );
    let mut program = Arguments::command();
    program.build();
    for command in program.get_subcommands() {
        add_command(&mut page, command, "");
    }
    page
}

fn add_command(page: &mut String, command: &Command, before: &str) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{before}{}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    *page += &format!("\n## {name}\n\n{about}\n");
    if let Some(("config", _)) = name.split_once(' ') {
        page.push_str("\nIt takes the options of [serve](#serve).\n");
        return;
    }
    let mut args = command.get_arguments().filter(|arg| is_listed(arg)).peekable();
    if args.peek().is_some() {
        page.push_str("\n| option | meaning |\n|---|---|\n");
    }
    args.for_each(|arg| add_option(page, arg));
    if sends_token(command) {
        *page += &format!("| the environment variable `{TOKEN_VARIABLE}` | {TOKEN_HELP} |\n");
    }
    for inner in command.get_subcommands() {
        add_command(page, inner, &format!("{name} "));
    }
}

fn is_listed(arg: &Arg) -> bool {
    let is_about_program = matches!(arg.get_id().as_str(), "help" | "version");
    !arg.is_hide_set() && !is_about_program && !arg.get_long().is_some_and(|name| name.starts_with(HUB_OPTIONS))
}

fn add_option(page: &mut String, arg: &Arg) {
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue);
    let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let name = match arg.get_long() {
        Some(long) if takes_value => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    };
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = (takes_value && !defaults.is_empty()).then(|| format!("<br>default `{}`", cell(&defaults.join(","))));
    let variable = arg.get_env().map(|name| format!("<br>`{}`", name.to_string_lossy()));
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let (default, variable) = (default.unwrap_or_default(), variable.unwrap_or_default());
    *page += &format!("| `{}`{default}{variable} | {} |\n", cell(&name), cell(&help));
}
