//! Keys of one node, and the commands that the service's scripts use.

use std::collections::BTreeMap;

use flash_indexer_sim::Random;

/// Value of a key.
#[derive(Debug, Clone)]
enum Stored {
    Text(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    SortedSet(BTreeMap<Vec<u8>, i64>),
}

#[derive(Debug, Clone)]
struct Entry {
    value: Stored,
    /// Time of the node's clock at which the key expires, in milliseconds.
    expires_at: Option<u64>,
}

/// Response to a command.
#[derive(Debug, Clone)]
pub(super) enum Response {
    Nil,
    Integer(i64),
    Text(Vec<u8>),
    List(Vec<Response>),
    Status,
    Error(&'static str),
}

/// All keys of a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tables(BTreeMap<Vec<u8>, Entry>);

const WRONG_TYPE: Response = Response::Error("WRONGTYPE Operation against a key holding the wrong kind of value");

impl Tables {
    /// Executes a command at this time of the node's clock, in microseconds.
    pub(super) fn execute(&mut self, now_us: u64, command: &[Vec<u8>]) -> Response {
        let now = now_us / 1_000;
        let (name, arguments) = command.split_first().expect("a command has a name");
        let name = str::from_utf8(name).expect("the name of a command is text");
        if name == "TIME" {
            return list([now_us / 1_000_000, now_us % 1_000_000].map(|part| part.to_string().into_bytes()));
        }
        let (key, arguments) = arguments.split_first().expect("every other command has a key");
        if self.0.get(key).and_then(|entry| entry.expires_at).is_some_and(|at| at <= now) {
            self.0.remove(key);
        }
        match name {
            "DEL" => Response::Integer(i64::from(self.0.remove(key).is_some())),
            "PEXPIRE" => {
                let Some(entry) = self.0.get_mut(key) else { return Response::Integer(0) };
                entry.expires_at = Some(now + number(&arguments[0]) as u64);
                Response::Integer(1)
            }
            "GET" | "SET" => self.text(now, name, key, arguments),
            "ZADD" | "ZREM" | "ZSCORE" | "ZRANGEBYSCORE" => self.sorted_set(name, key, arguments),
            _ => self.hash(name, key, arguments),
        }
    }

    fn text(&mut self, now: u64, name: &str, key: &[u8], arguments: &[Vec<u8>]) -> Response {
        match (name, arguments) {
            ("GET", []) => match self.0.get(key).map(|entry| &entry.value) {
                None => Response::Nil,
                Some(Stored::Text(text)) => Response::Text(text.clone()),
                Some(_) => WRONG_TYPE,
            },
            ("SET", [value, options @ ..]) => {
                let expires_at = match options {
                    [] => None,
                    [unit, time] if unit == b"PX" => Some(now + number(time) as u64),
                    _ => unreachable!("no script uses these options of SET"),
                };
                self.0.insert(key.to_vec(), Entry { value: Stored::Text(value.clone()), expires_at });
                Response::Status
            }
            _ => unreachable!("no script calls {name} with {} arguments", arguments.len()),
        }
    }

    fn hash(&mut self, name: &str, key: &[u8], arguments: &[Vec<u8>]) -> Response {
        let is_write = matches!(name, "HSET" | "HSETNX");
        if is_write {
            let empty = || Entry { value: Stored::Hash(BTreeMap::new()), expires_at: None };
            self.0.entry(key.to_vec()).or_insert_with(empty);
        }
        let mut none = BTreeMap::new();
        let table = match self.0.get_mut(key).map(|entry| &mut entry.value) {
            Some(Stored::Hash(table)) => table,
            Some(_) => return WRONG_TYPE,
            None => &mut none,
        };
        let value = |field: &Vec<u8>| table.get(field).cloned().map_or(Response::Nil, Response::Text);
        let response = match (name, arguments) {
            ("HGET", [field]) => value(field),
            ("HMGET", fields) => Response::List(fields.iter().map(value).collect()),
            ("HGETALL", []) => list(table.iter().flat_map(|(field, value)| [field.clone(), value.clone()])),
            ("HEXISTS", [field]) => Response::Integer(i64::from(table.contains_key(field))),
            ("HSET", [field, value]) => {
                Response::Integer(i64::from(table.insert(field.clone(), value.clone()).is_none()))
            }
            ("HSETNX", [field, value]) => {
                let is_new = !table.contains_key(field);
                table.entry(field.clone()).or_insert_with(|| value.clone());
                Response::Integer(i64::from(is_new))
            }
            ("HDEL", [field]) => Response::Integer(i64::from(table.remove(field).is_some())),
            _ => unreachable!("no script calls {name} with {} arguments", arguments.len()),
        };
        if table.is_empty() {
            self.0.remove(key);
        }
        response
    }

    fn sorted_set(&mut self, name: &str, key: &[u8], arguments: &[Vec<u8>]) -> Response {
        if name == "ZADD" {
            let empty = || Entry { value: Stored::SortedSet(BTreeMap::new()), expires_at: None };
            self.0.entry(key.to_vec()).or_insert_with(empty);
        }
        let mut none = BTreeMap::new();
        let set = match self.0.get_mut(key).map(|entry| &mut entry.value) {
            Some(Stored::SortedSet(set)) => set,
            Some(_) => return WRONG_TYPE,
            None => &mut none,
        };
        let response = match (name, arguments) {
            ("ZADD", [score, member]) => {
                Response::Integer(i64::from(set.insert(member.clone(), number(score)).is_none()))
            }
            ("ZREM", [member]) => Response::Integer(i64::from(set.remove(member).is_some())),
            ("ZSCORE", [member]) => {
                set.get(member).map_or(Response::Nil, |score| Response::Text(score.to_string().into_bytes()))
            }
            ("ZRANGEBYSCORE", [_, highest, options @ ..]) => {
                let highest = if highest == b"+inf" { i64::MAX } else { number(highest) };
                let mut members: Vec<_> = set.iter().filter(|&(_, &score)| score <= highest).collect();
                members.sort_by_key(|&(_, &score)| score);
                match options.first().map(Vec::as_slice) {
                    Some(b"WITHSCORES") => list(
                        members
                            .into_iter()
                            .flat_map(|(member, score)| [member.clone(), score.to_string().into_bytes()]),
                    ),
                    Some(b"LIMIT") => {
                        list(members.into_iter().take(number(&options[2]) as usize).map(|(member, _)| member.clone()))
                    }
                    _ => unreachable!("every script uses one of these options"),
                }
            }
            _ => unreachable!("no script calls {name} with {} arguments", arguments.len()),
        };
        if set.is_empty() {
            self.0.remove(key);
        }
        response
    }

    /// Removes some keys, as a node without memory does.
    pub(super) fn evict(&mut self, count: usize, random: &mut Random) {
        for _ in 0..count.min(self.0.len()) {
            let evicted = self.0.keys().nth(random.within(0..self.0.len())).cloned();
            evicted.map(|key| self.0.remove(&key));
        }
    }
}

fn list(texts: impl IntoIterator<Item = Vec<u8>>) -> Response {
    Response::List(texts.into_iter().map(Response::Text).collect())
}

/// A number as scripts write it.
fn number(text: &[u8]) -> i64 {
    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).expect("scripts write whole numbers")
}
