// Live: moving charts over server-sent events.

import { follow } from "./api.js";
import { lineChart } from "./chart.js";
import { duration, el, rate, sentence, setText } from "./dom.js";

const WINDOW_S = 180;
/** Latencies and hit rates are of this many seconds, so that few queries give steady lines. */
const SMOOTHED = 5;

/** The latency below which a share of the queries of a histogram lies, within its bucket by interpolation. */
function percentile(counts, bounds, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total === 0) return NaN;
  let rest = share * total;
  for (let at = 0; at < counts.length; at += 1) {
    if (rest <= counts[at] && counts[at] > 0) {
      const lower = at === 0 ? 0 : bounds[at - 1];
      return at < bounds.length ? lower + ((bounds[at] - lower) * rest) / counts[at] : lower;
    }
    rest -= counts[at];
  }
  return bounds.at(-1);
}

export const live = {
  build() {
    this.samples = [];
    const percent = (value) => `${Math.round(value)} %`;
    this.charts = {
      events: lineChart({ title: "Events/s", series: [{ name: "events" }], format: rate }),
      queries: lineChart({ title: "Queries/s", series: [{ name: "queries" }], format: rate }),
      latency: lineChart({ title: "Query latency", series: [{ name: "p50" }, { name: "p90" }, { name: "p99" }], format: duration, from: 1e-5 }),
      hits: lineChart({ title: "Hit rate", series: [{ name: "predicted" }, { name: "reported" }], format: percent, max: 100 }),
    };
    this.unreported = el("p", { class: "muted small", hidden: true },
      "No hits were reported in these minutes: a router reports them with prompt_tokens and cached_tokens in POST /done.");
    this.problem = el("p", { class: "problem", role: "status", hidden: true });
    return el("section", { "aria-label": "Live" }, this.problem,
      el("div", { class: "panels charts" }, Object.values(this.charts).map((chart) => chart.element)),
      el("p", { class: "muted small" },
        "The last three minutes, all models and tenants. Latency: requests over HTTP and gRPC, over five seconds. Hit rates, over five seconds: predicted are blocks of queried prompts that the rank with the deepest match holds; reported are tokens of finished requests that their engines had cached."),
      this.unreported);
  },

  show() {
    this.control = new AbortController();
    const received = (events) => {
      this.problem.hidden = true;
      const last = this.samples.at(-1)?.at_ms ?? 0;
      this.samples.push(...events.filter((event) => event.at_ms > last));
      this.samples.splice(0, this.samples.length - WINDOW_S - SMOOTHED);
      this.repaint();
    };
    const lost = (error) => {
      if (this.control.signal.aborted) return;
      this.problem.hidden = false;
      setText(this.problem, sentence(error.status === 401 ? error.message : `${error.message}; trying again`));
    };
    follow("ui/events", received, lost, this.control.signal);
    this.repaint();
  },

  hide() {
    this.control.abort();
  },

  repaint() {
    const points = { events: [], queries: [], latency: [], hits: [] };
    this.samples.forEach((sample, at) => {
      if (at === 0) return;
      const before = this.samples[at - 1];
      const far = this.samples[Math.max(0, at - SMOOTHED)];
      const seconds = (sample.at_ms - before.at_ms) / 1000;
      const time = sample.at_ms / 1000;
      // A counter that fell was that of a model which is unregistered.
      const since = (field, from) => Math.max(0, sample[field] - from[field]);
      points.events.push({ at: time, values: [since("events", before) / seconds] });
      points.queries.push({ at: time, values: [since("queries", before) / seconds] });
      const counts = sample.latencies.map((count, bucket) => count - far.latencies[bucket]);
      points.latency.push({ at: time, values: [0.5, 0.9, 0.99].map((share) => percentile(counts, sample.bounds_s, share)) });
      const queried = since("queried_blocks", far);
      const reported = since("reported_prompt_tokens", far);
      points.hits.push({ at: time, values: [queried > 0 ? (100 * since("found_blocks", far)) / queried : NaN,
        reported > 0 ? (100 * since("reported_cached_tokens", far)) / reported : NaN] });
    });
    this.unreported.hidden = points.hits.length === 0 || points.hits.some(({ values }) => Number.isFinite(values[1]));
    for (const [name, chart] of Object.entries(this.charts)) chart.set(points[name], WINDOW_S);
  },
};
