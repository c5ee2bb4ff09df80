// Health: readiness, losses, drops, limits, peers, store and discovery.

import { ApiError, get, samples, text } from "./api.js";
import { duration, el, pill, sentence, short, whole } from "./dom.js";

const POLL_MS = 5000;
const PREFIX = "flash_indexer_";

const STREAMS = [
  ["messages_total", "messages received"],
  ["gaps_total", "gaps"],
  ["missed_messages_total", "messages in gaps"],
  ["replayed_messages_total", "messages replayed"],
  ["lost_messages_total", "messages lost"],
  ["engine_restarts_total", "engine restarts"],
];
const SERVICE = [
  ["stalled_threads", "stalled threads"],
  ["thread_panics_total", "panics"],
  ["index_replacements_total", "indexes replaced after a panic"],
  ["log_lines_dropped_total", "log lines dropped"],
  ["access_denied_total", "requests denied"],
  ["ingest_queue_bytes", "bytes received and not applied"],
  ["queued_batches", "batches that wait for writers"],
];

export const health = {
  build() {
    this.panels = el("div", { class: "columns" });
    return el("section", { "aria-label": "Health" }, this.panels);
  },

  show() {
    this.before = null;
    this.shown = Symbol();
    this.poll(this.shown);
  },

  hide() {
    this.shown = null;
  },

  async poll(shown) {
    const metrics = this.metrics();
    const parts = await Promise.all([this.readiness(), metrics.then(({ panels }) => panels), this.peers(), this.store(metrics), this.discovery()]);
    if (this.shown !== shown) return;
    this.panels.replaceChildren(...parts.flat().map(([title, ...content]) => el("div", { class: "panel" }, el("h2", {}, title), content)));
    setTimeout(() => this.shown === shown && this.poll(shown), POLL_MS);
  },

  async readiness() {
    try {
      const ready = await get("ready");
      const panics = Object.entries(ready.panics ?? {}).map(([thread, count]) => `${thread}: ${whole(count)}`);
      return [["Readiness", facts([["State", pill("ready")], ["Index at the start from", ready.recovered_from ?? "–"], ["Panics since the start", panics.join(", ") || "none"]])]];
    } catch (error) {
      return [["Readiness", facts([["State", el("span", { class: "pill warn" }, "not ready")], ["Why", shownError(error)]])]];
    }
  },

  async metrics() {
    let found;
    try {
      found = samples(await text("metrics"));
    } catch (error) {
      return { panels: [["Metrics", el("p", { class: "problem" }, shownError(error))]], hasStore: true };
    }
    const all = (name) => found.get(PREFIX + name) ?? [];
    const total = (name) => all(name).reduce((sum, sample) => sum + sample.value, 0);
    const by = (name, label) => all(name).filter((sample) => sample.value > 0).map((sample) => [sample.labels[label], sample.value]);
    const now = { at: performance.now(), values: new Map([...found].flatMap(([name, list]) => list.map((sample) => [name + JSON.stringify(sample.labels), sample.value]))) };
    const before = this.before;
    this.before = now;
    const grown = (name, labels) => {
      const key = PREFIX + name + JSON.stringify(labels);
      return before ? (now.values.get(key) ?? 0) - (before.values.get(key) ?? 0) : 0;
    };
    const counts = (name, label, none) => {
      const rows = by(name, label).sort((a, b) => b[1] - a[1]);
      return rows.length === 0 ? el("p", { class: "muted" }, none) : table([label, "count", `last ${POLL_MS / 1000} s`],
        rows.map(([value, count]) => [value.replaceAll("_", " "), whole(count), whole(grown(name, { [label]: value }))]));
    };
    const replays = by("replays_total", "outcome").map(([outcome, count]) => `${outcome.replaceAll("_", " ")} ${whole(count)}`);
    const listeners = by("listeners", "trust").length > 0 ? all("listeners") : [];
    const memory = (found.get("process_resident_memory_bytes") ?? [])[0]?.value;
    const panels = [
      ["Streams", facts([...STREAMS.map(([name, title]) => [title, whole(total(name))]), ["replays", replays.join(", ") || "none"],
        ...listeners.filter((sample) => sample.value > 0).map((sample) => [`ranks ${sample.labels.status}, ${sample.labels.trust}`, whole(sample.value)])])],
      ["Drops by reason", counts("rejected_total", "reason", "Nothing was rejected or dropped.")],
      ["Limits reached", counts("limit_reached_total", "limit", "No limit was reached.")],
      ["Service", facts([...SERVICE.map(([name, title]) => [title, whole(total(name))]), ...(memory ? [["resident memory", `${short(memory / 1048576)} MiB`]] : [])])],
    ];
    return { panels, hasStore: all("store_connected").length > 0 };
  },

  async peers() {
    return part("Peers", "peers", (peers) => (peers.length === 0 ? el("p", { class: "muted" }, "No peers are known.") : el("ul", {}, peers.map((url) => el("li", { class: "mono" }, url)))));
  },

  /** Without a store, the service answers with 404, which the browser would log as an error. */
  async store(metrics) {
    if (!(await metrics).hasStore) return [["Shared store", el("p", { class: "muted" }, "No shared store is configured.")]];
    return part("Shared store", "store", (store) => facts([["State", pill(store.status)], ["Address", el("span", { class: "mono" }, store.url)], ["Last error", store.last_error ?? "none"],
      ["This replica", store.publisher], ["Published ranks", whole(store.published_ranks)], ["Unfinished ranks", whole(store.unfinished_ranks)], ["Waiting changes", whole(store.waiting_changes)],
      ["Ranks of all replicas", whole(store.ranks.length)]]), "No shared store is configured.");
  },

  async discovery() {
    return part("Discovery", "discovery", (sources) => (sources.length === 0 ? el("p", { class: "muted" }, "No discovery source is configured.")
      : sources.map((source) => facts([["Source", el("span", { class: "mono" }, source.source)], ["State", pill(source.state)],
        ["Last success", source.last_success_ms_ago === null ? "–" : `${duration(source.last_success_ms_ago / 1000)} ago`],
        ["Error", source.error ?? "none"], ["Problems", source.problems.join("; ") || "none"], ["Targets", whole(source.targets.length)],
        ["Not registered", source.targets.filter((target) => target.reason).slice(0, 8).map((target) => `${target.instance_id}/${target.dp_rank}: ${target.reason}`).join("; ") || "none"]]))));
  },
};

async function part(title, path, show, missing) {
  try {
    return [[title, show(await get(path))]];
  } catch (error) {
    if (error.status === 404 && missing) return [[title, el("p", { class: "muted" }, missing)]];
    return [[title, el("p", { class: "muted" }, shownError(error))]];
  }
}

function shownError(error) {
  if (!(error instanceof ApiError)) throw error;
  return sentence(error.message);
}

const facts = (rows) => el("dl", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

const table = (names, rows) => el("div", { class: "scroll-x" }, el("table", {},
  el("thead", {}, el("tr", {}, names.map((name, at) => el("th", { class: at > 0 && "number" }, name)))),
  el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, at) => el("td", { class: at > 0 && "number" }, cell)))))));
