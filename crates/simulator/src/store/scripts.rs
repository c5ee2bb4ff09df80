//! Execution of the service's scripts, with the language of the store.

use std::collections::HashMap;
use std::sync::Arc;

use flash_indexer_redis::{ScriptCall, Value as StoreValue};
use mlua::{Function, Lua, MultiValue, Table, Value};
use parking_lot::Mutex;

use super::tables::{Response, Tables};

/// The node that executes a script: its keys, and its clock in microseconds.
#[derive(Debug, Default)]
struct Node {
    tables: Tables,
    now_us: u64,
}

/// Interpreter of scripts.
#[derive(Debug)]
pub(super) struct Interpreter {
    lua: Lua,
    /// The node of the running script.
    node: Arc<Mutex<Node>>,
    compiled: HashMap<&'static str, Function>,
}

impl Interpreter {
    pub(super) fn new() -> Self {
        Self::with_commands().expect("the interpreter accepts these functions")
    }

    fn with_commands() -> mlua::Result<Self> {
        let (lua, node) = (Lua::new(), Arc::<Mutex<Node>>::default());
        let redis = lua.create_table()?;
        for (name, is_protected) in [("call", false), ("pcall", true)] {
            let node = Arc::clone(&node);
            let call = lua.create_function(move |lua, arguments: MultiValue| {
                let command: Vec<Vec<u8>> = arguments.iter().map(argument).collect();
                let mut node = node.lock();
                let now_us = node.now_us;
                match node.tables.execute(now_us, &command) {
                    Response::Error(error) if !is_protected => Err(mlua::Error::runtime(error)),
                    response => response_value(lua, response),
                }
            })?;
            redis.set(name, call)?;
        }
        lua.globals().set("redis", redis)?;
        Ok(Self { lua, node, compiled: HashMap::new() })
    }

    /// Runs a script on a node's keys, at this time of its clock in microseconds.
    pub(super) fn run(&mut self, call: ScriptCall<'_>, tables: &mut Tables, now_us: u64) -> StoreValue {
        *self.node.lock() = Node { tables: std::mem::take(tables), now_us };
        let response = self.execute(call);
        *tables = std::mem::take(&mut self.node.lock().tables);
        response.unwrap_or_else(|error| panic!("a script failed: {error}"))
    }

    fn execute(&mut self, call: ScriptCall<'_>) -> mlua::Result<StoreValue> {
        let list = |texts: &[Vec<u8>]| {
            let texts = texts.iter().map(|text| self.lua.create_string(text)).collect::<mlua::Result<Vec<_>>>()?;
            self.lua.create_sequence_from(texts)
        };
        self.lua.globals().set("KEYS", list(call.keys)?)?;
        self.lua.globals().set("ARGV", list(call.arguments)?)?;
        let script = match self.compiled.get(call.source) {
            Some(script) => script.clone(),
            None => {
                let script = self.lua.load(call.source).into_function()?;
                self.compiled.insert(call.source, script.clone());
                script
            }
        };
        store_value(script.call(())?)
    }
}

/// An argument of a command.
fn argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        _ => panic!("no script passes {value:?} to a command"),
    }
}

fn response_value(lua: &Lua, response: Response) -> mlua::Result<Value> {
    Ok(match response {
        Response::Nil => Value::Boolean(false),
        Response::Integer(number) => Value::Number(number as f64),
        Response::Text(text) => Value::String(lua.create_string(text)?),
        Response::List(items) => {
            let items = items.into_iter().map(|item| response_value(lua, item)).collect::<mlua::Result<Vec<_>>>()?;
            Value::Table(lua.create_sequence_from(items)?)
        }
        Response::Status => Value::Table(status(lua, "ok", "OK")?),
        Response::Error(error) => Value::Table(status(lua, "err", error)?),
    })
}

fn status(lua: &Lua, name: &str, text: &str) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set(name, text)?;
    Ok(table)
}

/// The response of a script, as the store sends it.
fn store_value(value: Value) -> mlua::Result<StoreValue> {
    Ok(match value {
        Value::Integer(number) => StoreValue::Int(number),
        Value::Number(number) => StoreValue::Int(number as i64),
        Value::String(text) => StoreValue::BulkString(text.as_bytes().to_vec()),
        Value::Table(items) => {
            let items = items.sequence_values::<Value>().map(|item| store_value(item?));
            StoreValue::Array(items.collect::<mlua::Result<_>>()?)
        }
        _ => StoreValue::Nil,
    })
}
