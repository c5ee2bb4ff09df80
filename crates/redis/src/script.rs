//! Lua scripts that run inside the store.

use std::sync::LazyLock;

use redis::Cmd;

use crate::environment::ScriptCall;

/// A script, called by its digest.
pub(crate) struct Script {
    source: &'static str,
    digest: LazyLock<String>,
}

macro_rules! scripts {
    ($($(#[$about:meta])* $name:ident = $($file:literal)+;)*) => {
        $($(#[$about])* pub(crate) static $name: Script = {
            const SOURCE: &str = concat!($(include_str!(concat!("scripts/", $file))),+);
            Script { source: SOURCE, digest: LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned()) }
        };)*
    };
}

// A script is one file, or several in a row.
scripts! {
    /// Finds the depths of a prompt.
    FIND = "find.lua";
    /// Writes one batch of a session.
    WRITE = "write.lua";
    /// Renews a publisher's leases.
    RENEW = "tables.lua" "renew.lua";
    /// Ends a publisher's leases.
    RELEASE = "tables.lua" "release.lua";
    /// Reads the directory of ranks.
    LIST = "tables.lua" "list.lua";
    /// Removes values that no replica writes.
    REMOVE_INVALID = "remove_invalid.lua";
}

/// One call of a script.
pub(crate) struct Call {
    script: &'static Script,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

impl Script {
    pub(crate) fn on(&'static self, keys: impl Into<Vec<String>>) -> Call {
        let keys = keys.into().into_iter().map(String::into_bytes).collect();
        Call { script: self, keys, arguments: Vec::new() }
    }
}

impl Call {
    pub(crate) fn keys(mut self, more: Vec<Vec<u8>>) -> Self {
        self.keys.extend(more);
        self
    }

    pub(crate) fn argument(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn number(self, number: u64) -> Self {
        self.argument(number.to_string())
    }

    pub(crate) fn first_key(&self) -> &str {
        self.keys.first().and_then(|key| str::from_utf8(key).ok()).unwrap_or_default()
    }

    /// The call as a simulation executes it.
    pub(crate) fn script_call(&self) -> ScriptCall<'_> {
        ScriptCall { source: self.script.source, keys: &self.keys, arguments: &self.arguments }
    }

    /// The command for a node that has cached the script.
    pub(crate) fn by_digest(&self) -> Cmd {
        self.command("EVALSHA", &self.script.digest)
    }

    /// The command for a node that has not cached the script; the node caches it.
    pub(crate) fn by_source(&self) -> Cmd {
        self.command("EVAL", self.script.source)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len());
        for argument in self.keys.iter().chain(&self.arguments) {
            command.arg(argument.as_slice());
        }
        command
    }
}
