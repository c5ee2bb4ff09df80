//! A Kubernetes API server on loopback with pods: paginated lists, and watches of their changes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// Pods on a page of a list.
const PAGE: usize = 2;

#[derive(Default)]
struct State {
    pods: BTreeMap<String, Value>,
    version: u64,
    /// Changes, by version.
    events: Vec<(u64, Value)>,
    /// Events up to this version are no longer available.
    forgotten: u64,
    /// Status of every answer, if set.
    refuses_with: Option<u16>,
    /// Number of cuts. A watch that began at an earlier number is ended.
    cuts: u64,
    lists: usize,
    watched_from: Vec<u64>,
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

pub(crate) struct FakeCluster {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl FakeCluster {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.state.lock().expect("no thread panics").is_over {
                    return;
                }
                let shared = Arc::clone(&serving);
                // The client may disconnect at any time.
                std::thread::spawn(move || drop(serve(stream.expect("a connection"), &shared)));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.state.lock().expect("no thread panics"));
        self.shared.changed.notify_all();
        result
    }

    /// Adds or replaces a pod. Its annotations are given without their prefix.
    pub(crate) fn set(&self, name: &str, address: &str, is_ready: &str, annotations: &Value) {
        let annotations = annotations.as_object().into_iter().flatten();
        let annotations: BTreeMap<String, Value> =
            annotations.map(|(name, value)| (format!("flash-indexer/{name}"), value.clone())).collect();
        self.change(|state| {
            state.version += 1;
            let pod = json!({
                "metadata": { "name": name, "namespace": "prod", "resourceVersion": state.version.to_string(),
                              "labels": { "app": "vllm" }, "annotations": annotations },
                "status": { "phase": "Running", "podIP": address,
                            "conditions": [{ "type": "Initialized", "status": "True" },
                                           { "type": "Ready", "status": is_ready }] },
            });
            let kind = if state.pods.insert(name.to_owned(), pod.clone()).is_some() { "MODIFIED" } else { "ADDED" };
            state.events.push((state.version, json!({ "type": kind, "object": pod })));
        });
    }

    pub(crate) fn remove(&self, name: &str) {
        self.change(|state| {
            state.version += 1;
            let mut pod = state.pods.remove(name).expect("it is there");
            pod["metadata"]["resourceVersion"] = json!(state.version.to_string());
            state.events.push((state.version, json!({ "type": "DELETED", "object": pod })));
        });
    }

    /// Advances the version without a change of pods, and sends a bookmark to watchers.
    pub(crate) fn bookmark(&self) {
        self.change(|state| {
            state.version += 10;
            let object = json!({ "metadata": { "resourceVersion": state.version.to_string() } });
            state.events.push((state.version, json!({ "type": "BOOKMARK", "object": object })));
        });
    }

    /// Ends all watches.
    pub(crate) fn cut(&self) {
        self.change(|state| state.cuts += 1);
    }

    /// Drops the history of events: no watch can then resume from an earlier version.
    pub(crate) fn forget(&self) {
        self.change(|state| {
            state.version += 1;
            state.forgotten = state.version;
            state.events.clear();
        });
    }

    pub(crate) fn refuse_with(&self, status: Option<u16>) {
        self.change(|state| state.refuses_with = status);
    }

    pub(crate) fn version(&self) -> u64 {
        self.change(|state| state.version)
    }

    /// Lists that were begun.
    pub(crate) fn lists(&self) -> usize {
        self.change(|state| state.lists)
    }

    /// Versions from which watches were begun.
    pub(crate) fn watched_from(&self) -> Vec<u64> {
        self.change(|state| state.watched_from.clone())
    }
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        self.change(|state| (state.is_over, state.cuts) = (true, u64::MAX));
        // Wakes the accepting thread.
        drop(TcpStream::connect(self.address));
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let target = first.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let parameters: BTreeMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    let refused = shared.state.lock().expect("no thread panics").refuses_with;
    let is_right = path == "/api/v1/namespaces/prod/pods" && parameters.get("labelSelector") == Some(&"app%3Dvllm");
    match refused.or_else(|| (!is_right).then_some(404)) {
        Some(status) => answer(
            &mut stream,
            status,
            &json!({ "kind": "Status", "code": status, "message": format!("not so: {target}") }),
        ),
        None if parameters.contains_key("watch") => watch(&mut stream, shared, &parameters),
        None => {
            let page = list(shared, parameters.get("continue").copied());
            answer(&mut stream, 200, &page)
        }
    }
}

fn answer(stream: &mut TcpStream, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let len = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn list(shared: &Shared, after: Option<&str>) -> Value {
    let mut state = shared.state.lock().expect("no thread panics");
    if after.is_none() {
        state.lists += 1;
    }
    let rest: Vec<(&String, &Value)> =
        state.pods.iter().filter(|(name, _)| after.is_none_or(|after| name.as_str() > after)).collect();
    let items: Vec<&Value> = rest.iter().take(PAGE).map(|(_, pod)| *pod).collect();
    let more = if rest.len() > PAGE { rest[PAGE - 1].0.clone() } else { String::new() };
    json!({ "kind": "PodList", "items": items,
            "metadata": { "resourceVersion": state.version.to_string(), "continue": more } })
}

fn watch(stream: &mut TcpStream, shared: &Shared, parameters: &BTreeMap<&str, &str>) -> std::io::Result<()> {
    let mut sent: u64 = parameters["resourceVersion"].parse().expect("a version");
    let cuts = {
        let mut state = shared.state.lock().expect("no thread panics");
        state.watched_from.push(sent);
        state.cuts
    };
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")?;
    loop {
        let lines: Vec<String> = {
            let state = shared.state.lock().expect("no thread panics");
            let nothing_new =
                |state: &mut State| state.cuts == cuts && state.version <= sent && state.forgotten <= sent;
            let (state, _) = shared
                .changed
                .wait_timeout_while(state, Duration::from_secs(60), nothing_new)
                .expect("no thread panics");
            if state.cuts != cuts {
                return Ok(());
            }
            if sent < state.forgotten {
                let status =
                    json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410, "message": "too old" } });
                return writeln!(stream, "{status}");
            }
            let news: Vec<String> =
                state.events.iter().filter(|(at, _)| *at > sent).map(|(_, event)| event.to_string()).collect();
            sent = state.version;
            news
        };
        for line in lines {
            writeln!(stream, "{line}")?;
        }
        stream.flush()?;
    }
}
