// Heat map: stores and removals of each rank over time, from the counters of `/workers`.

import { colour, compareNames, cutName, el, fitted, plural, rate, setText, showTip, whole } from "./dom.js";

/** Columns that are drawn, and time of each. The ring has one more: the column that is not over yet. */
const COLUMNS = 150;
const COLUMN_MS = 2000;
const RING = COLUMNS + 1;
/** Ranks that are recorded, and ranks on a page. */
const RANKS_MAX = 8192;
const PAGE_ROWS = 40;
/** Width of a label: that of the longest IPv4 address with its port. */
const LABEL_PX = 160;
/** Below this width a label is above its row's bar. */
const NARROW_PX = 520;
/** Height of a label, of one that has a second line, and of a bar below it. */
const ROW_PX = 18;
const TALL_ROW_PX = 30;
const BAR_PX = 14;
const AXIS_PX = 22;

/** By rank, the blocks stored and removed in each column; the column of a time is its number modulo the ring. */
const rings = new Map();
/** The last column that is over, and the column of the first poll. */
let newest = -1;
let begun = -1;

/**
 * Adds what each rank stored and removed between two times in milliseconds: the previous poll and this one. Nothing is known of
 * the time between, so each column gets the share of its part of that time.
 */
export function recordActivity(ranks, since, now) {
  const column = Math.floor(now / COLUMN_MS);
  if (begun < 0) begun = column;
  for (let empty = Math.max(newest + 2, column - COLUMNS); empty <= column; empty += 1) {
    for (const ring of rings.values()) ring.stored[empty % RING] = ring.removed[empty % RING] = 0;
  }
  newest = column - 1;
  const parts = [];
  for (let at = Math.max(Math.floor(since / COLUMN_MS), column - COLUMNS); at <= column; at += 1) {
    const covered = Math.min(now, (at + 1) * COLUMN_MS) - Math.max(since, at * COLUMN_MS);
    parts.push([at % RING, covered / (now - since)]);
  }
  const present = new Set();
  for (const rank of ranks) {
    let ring = rings.get(rank.key);
    if (!ring && rings.size < RANKS_MAX) {
      ring = { rank, stored: new Float32Array(RING), removed: new Float32Array(RING) };
      rings.set(rank.key, ring);
    }
    if (!ring) continue;
    present.add(rank.key);
    ring.rank = rank;
    for (const [at, part] of parts) {
      ring.stored[at] += rank.stored * part;
      ring.removed[at] += rank.removed * part;
    }
  }
  for (const key of rings.keys()) if (!present.has(key)) rings.delete(key);
}

/** Names the model and the tenant of a rank, each only if there are several of them. */
function scopeNames() {
  const isShared = (field) => new Set([...rings.values()].map(({ rank }) => rank[field])).size < 2;
  const fields = ["model", "tenant"].filter((field) => !isShared(field));
  return (rank) => fields.map((field) => rank[field]).join(" · ");
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

export const heat = {
  build(app) {
    this.page = 0;
    this.search = el("input", { type: "search", placeholder: "instance, model", oninput: () => ((this.page = 0), this.repaint(app)), autocomplete: "off", spellcheck: "false" });
    this.order = el("select", { onchange: () => this.repaint(app) }, el("option", { value: "active" }, "most active first"), el("option", { value: "name" }, "by instance"));
    this.back = el("button", { type: "button", onclick: () => this.turn(app, -1) }, "Previous");
    this.on = el("button", { type: "button", onclick: () => this.turn(app, 1) }, "Next");
    this.pages = el("span", { class: "muted small", role: "status" });
    this.canvas = el("canvas", { role: "img", "aria-label": "Blocks stored and removed by rank over time" });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => showTip(""));
    this.most = el("span", {});
    this.table = el("tbody", {});
    return el("section", { "aria-label": "Heat map" },
      el("div", { class: "row" }, el("label", { class: "wide" }, "Search", this.search), el("label", {}, "Order", this.order), this.back, this.on, this.pages),
      el("div", { class: "panel heat" },
        el("div", { class: "legend" }, el("span", {}, el("i", { class: "stored" }), "stored"), el("span", {}, el("i", { class: "removed" }), "removed"), this.most),
        this.canvas),
      el("p", { class: "muted small" }, `Blocks in each ${COLUMN_MS / 1000} seconds, on a logarithmic scale; the upper half of a row has stores, the lower half removals. This tab records the last ${(COLUMNS * COLUMN_MS) / 60000} minutes of at most ${whole(RANKS_MAX)} ranks. What happened between two polls, or while the tab was out of sight, is spread evenly over that time.`),
      el("details", { class: "panel" }, el("summary", {}, "As a table"),
        el("table", {}, el("thead", {}, el("tr", {}, ["Rank", "Stored", "Removed"].map((name, at) => el("th", { class: at > 0 && "number" }, name)))), this.table)));
  },

  turn(app, by) {
    this.page += by;
    this.repaint(app);
  },

  update(app) {
    this.repaint(app);
  },

  repaint(app) {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const name = ({ rank }) => `${rank.instance} / ${rank.rank}`;
    let rows = [...rings.values()].filter((ring) => words.every((word) => `${name(ring)} ${ring.rank.model} ${ring.rank.tenant}`.toLowerCase().includes(word)));
    const scopeName = scopeNames();
    rows = rows.map((ring) => {
      const scope = scopeName(ring.rank);
      return { ring, scope, name: scope ? `${name(ring)} · ${scope}` : name(ring), stored: sum(ring.stored), removed: sum(ring.removed) };
    });
    const byName = (a, b) => compareNames(a.name, b.name);
    const byActivity = (a, b) => b.stored + b.removed - a.stored - a.removed || byName(a, b);
    rows.sort(this.order.value === "name" ? byName : byActivity);
    const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS));
    this.page = Math.max(0, Math.min(this.page, pages - 1));
    this.back.disabled = this.page === 0;
    this.on.disabled = this.page === pages - 1;
    setText(this.pages, app.isRead ? `${plural(rows.length, "rank")}, page ${this.page + 1} of ${pages}` : "–");
    this.rows = rows.slice(this.page * PAGE_ROWS, (this.page + 1) * PAGE_ROWS);
    this.draw();
    this.table.replaceChildren(...this.rows.map((row) => el("tr", {}, el("td", {}, row.name), el("td", { class: "number" }, whole(row.stored)), el("td", { class: "number" }, whole(row.removed)))));
  },

  draw() {
    if (!this.canvas.isConnected || this.canvas.clientWidth === 0) return;
    const isNarrow = this.canvas.clientWidth < NARROW_PX;
    const labelPx = this.rows.some(({ scope }) => scope) ? TALL_ROW_PX : ROW_PX;
    this.rowPx = isNarrow ? labelPx + BAR_PX + 4 : labelPx;
    const { context, width, height } = fitted(this.canvas, this.rows.length * this.rowPx + AXIS_PX);
    const label = isNarrow ? 0 : Math.min(LABEL_PX, width / 4);
    this.cell = (width - label) / COLUMNS;
    this.label = label;
    const [text, empty, stored, removed] = ["muted", "raised", "stored", "removed"].map(colour);
    const most = this.rows.reduce((top, { ring }) => Math.max(top, ...ring.stored, ...ring.removed), 1);
    setText(this.most, `full colour: ${plural(Math.round(most), "block")}, ${rate((most * 1000) / COLUMN_MS)}/s`);
    const half = (isNarrow ? BAR_PX : labelPx - 4) / 2;
    const fits = (shown) => context.measureText(shown).width <= (isNarrow ? width : label - 8);
    this.rows.forEach(({ ring, scope }, at) => {
      const top = at * this.rowPx;
      const bar = top + (isNarrow ? labelPx - 1 : 1);
      context.fillStyle = text;
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.font = "12px system-ui, sans-serif";
      const rank = ` / ${ring.rank.rank}`;
      context.fillText(cutName(ring.rank.instance, (shown) => fits(shown + rank)) + rank, 0, top + ROW_PX / 2);
      context.font = "11px system-ui, sans-serif";
      if (scope) context.fillText(cutName(scope, fits), 0, top + ROW_PX + 4);
      context.fillStyle = empty;
      context.fillRect(label, bar, width - label, 2 * half);
      [[ring.stored, stored, bar], [ring.removed, removed, bar + half]].forEach(([values, fill, y]) => {
        context.fillStyle = fill;
        for (let column = 0; column < COLUMNS; column += 1) {
          const value = values[(newest - COLUMNS + 1 + column + RING) % RING];
          if (value === 0) continue;
          context.globalAlpha = 0.18 + 0.82 * (Math.log1p(value) / Math.log1p(most));
          context.fillRect(label + column * this.cell, y, Math.ceil(this.cell), half);
        }
        context.globalAlpha = 1;
      });
    });
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = text;
    context.textBaseline = "alphabetic";
    const minutes = (COLUMNS * COLUMN_MS) / 60000;
    for (let minute = 0; minute <= minutes; minute += 1) {
      if (isNarrow && minute % 2 === 1) continue;
      context.textAlign = minute === 0 ? "right" : minute === minutes ? "left" : "center";
      context.fillText(minute === 0 ? "now" : `−${minute} min`, width - ((width - label) * minute) / minutes, height - 6);
    }
  },

  point(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const row = this.rows[Math.floor((event.clientY - top) / this.rowPx)];
    const column = Math.floor((event.clientX - left - this.label) / this.cell);
    if (!row || column < 0 || column >= COLUMNS) return showTip("");
    const at = newest - COLUMNS + 1 + column;
    if (at < begun) return showTip(`${row.name}\nbefore this tab was opened`, event.clientX, event.clientY);
    const seconds = ((newest - at) * COLUMN_MS) / 1000;
    showTip(`${row.name}, ${seconds} s ago\nstored ${whole(row.ring.stored[at % RING])}, removed ${whole(row.ring.removed[at % RING])}`, event.clientX, event.clientY);
  },
};
