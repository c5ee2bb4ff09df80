// Fleet: every rank, its blocks, its trust and why.

import { TIERS, TIER_NAMES, compareNames, duration, el, nameCell, noEngine, pill, plural, rate, setText, short, tierLegend, whole } from "./dom.js";

/** Height of a row, and of one with two lines. */
const ROW_PX = 38;
const TALL_ROW_PX = 56;
/** Rows drawn above and below the visible ones. */
const MARGIN_ROWS = 6;
const TRUSTS = ["exact", "recovering", "degraded", "approximate", "cold"];
const TRUST_ORDER = { degraded: 0, recovering: 1, cold: 2, approximate: 3, exact: 4 };

const ago = (rank) => rank.listener.last_event_ms_ago;

/**
 * Columns: name, width, value to sort by, and content of a cell. Those with a `narrow` width are shown on a phone; the instance and its
 * rank, which have an empty one, are in a line above the others.
 */
const COLUMNS = [
  { id: "instance", name: "Instance", width: "minmax(130px, 1.5fr)", narrow: "", by: (r) => r.instance, show: (r) => nameCell(r.instance) },
  { id: "rank", name: "Rank", width: "40px", narrow: "", number: true, by: (r) => r.rank, show: (r) => String(r.rank) },
  { id: "model", name: "Model", width: "minmax(80px, 1.2fr)", by: (r) => `${r.model}\u0000${r.tenant}`, show: (r) => (r.tenant === "default" ? r.model : `${r.model} · ${r.tenant}`) },
  { id: "trust", name: "Trust", width: "116px", narrow: "100px", by: (r) => TRUST_ORDER[r.trust] ?? 9, show: (r) => pill(r.trust) },
  { id: "blocks", name: "Blocks", width: "minmax(66px, 1fr)", narrow: "1fr", number: true, down: true, by: (r) => r.total, show: blocksCell },
  ...TIERS.map((tier) => ({ id: tier, name: TIER_NAMES[tier], width: "66px", number: true, down: true, tier, by: (r) => r.listener.blocks[tier], show: (r) => short(r.listener.blocks[tier]) })),
  { id: "lag", name: "Lag", width: "56px", number: true, down: true, by: (r) => r.lag, show: (r) => short(r.lag) },
  { id: "events", name: "Events/s", width: "64px", narrow: "64px", number: true, down: true, by: (r) => r.events, show: (r) => rate(r.events) },
  { id: "gaps", name: "Gaps", width: "52px", number: true, down: true, by: (r) => r.listener.gaps, show: (r) => short(r.listener.gaps) },
  { id: "last", name: "Last event", width: "84px", number: true, by: (r) => ago(r) ?? Infinity, show: (r) => (ago(r) === null ? "–" : duration(Math.round(ago(r) / 1000))) },
  { id: "why", name: "Why", width: "minmax(110px, 2fr)", by: (r) => reason(r), show: (r) => el("span", { class: "muted small", title: reason(r) }, reason(r)) },
];

let largest = 1;

function blocksCell(rank) {
  const bar = el("span", { class: "tiers", "aria-hidden": "true" });
  for (const tier of TIERS) {
    const part = el("i", { class: tier });
    part.style.width = `${(100 * rank.listener.blocks[tier]) / largest}%`;
    bar.append(part);
  }
  return el("span", { class: "blocks" }, el("span", {}, short(rank.total)), bar);
}

function reason(rank) {
  if (rank.why) return rank.why;
  if (rank.status !== "connected") return rank.status;
  if (rank.trust === "cold") return "no message of this epoch yet";
  return rank.listener.partial ? "memory was short: matches may be too short" : "";
}

export const fleet = {
  build(app) {
    this.sort = { id: "trust", down: false };
    this.trust = new Set();
    this.cards = {};
    const card = (id, name) => {
      this.cards[id] = el("b", {}, "–");
      return el("div", { class: "card" }, this.cards[id], el("span", {}, name));
    };
    this.search = el("input", { type: "search", placeholder: "instance, model, reason", oninput: () => this.update(app), autocomplete: "off", spellcheck: "false" });
    this.filters = el("div", { class: "row", role: "group", "aria-label": "Trust" }, TRUSTS.map((trust) =>
      el("button", {
        type: "button", "aria-pressed": "false", "data-trust": trust,
        onclick: ({ currentTarget }) => {
          const pressed = !this.trust.delete(trust) && Boolean(this.trust.add(trust));
          currentTarget.setAttribute("aria-pressed", String(pressed));
          this.update(app);
        },
      }, trust)));
    this.shown = el("span", { class: "muted small", role: "status" }, "–");
    this.head = el("div", { class: "head", role: "row" });
    this.sizer = el("div", { class: "sizer", role: "rowgroup" });
    // The head scrolls sideways with the rows, which are as wide as it is.
    this.scroll = el("div", { class: "scroll", onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, el("div", { class: "table" }, this.head, this.sizer));
    this.grid = el("div", { class: "grid", role: "grid", "aria-label": "Ranks" }, this.scroll);
    this.none = el("p", { class: "panel", hidden: true }, noEngine());
    this.detail = el("dialog", { "aria-label": "Rank", onclick: (event) => event.target === this.detail && this.detail.close() });
    this.lines = new Map();
    this.rows = [];
    return el("section", { "aria-label": "Fleet" },
      el("div", { class: "cards" }, card("instances", "instances"), card("ranks", "ranks"), card("exact", "of ranks exact"), card("blocks", "blocks held"), card("events", "events/s"), card("lag", "messages behind")),
      el("div", { class: "row" }, el("label", { class: "wide" }, "Search", this.search), this.filters),
      el("div", { class: "row" }, this.shown, el("span", { class: "grow" }), (this.legend = el("div", {}))),
      this.none, this.grid, this.detail);
  },

  update(app) {
    const { ranks } = app;
    this.none.hidden = !app.isRead || ranks.length > 0;
    this.grid.hidden = ranks.length === 0;
    if (!app.isRead) return;
    largest = ranks.reduce((most, rank) => Math.max(most, rank.total), 1);
    const sum = (value) => ranks.reduce((total, rank) => total + value(rank), 0);
    const exact = ranks.filter((rank) => rank.trust === "exact").length;
    setText(this.cards.instances, whole(new Set(ranks.map((rank) => `${rank.model}\u0000${rank.tenant}\u0000${rank.instance}`)).size));
    setText(this.cards.ranks, whole(ranks.length));
    setText(this.cards.exact, ranks.length ? `${Math.floor((100 * exact) / ranks.length)} %` : "–");
    setText(this.cards.blocks, short(sum((rank) => rank.total)));
    setText(this.cards.events, rate(sum((rank) => rank.events)));
    setText(this.cards.lag, short(sum((rank) => rank.lag)));

    this.tiers = TIERS.filter((tier) => ranks.some((rank) => rank.listener.blocks[tier] > 0));
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (rank) => {
      if (this.trust.size > 0 && !this.trust.has(rank.trust)) return false;
      const text = `${rank.instance} ${rank.rank} ${rank.model} ${rank.tenant} ${rank.trust} ${rank.status} ${reason(rank)} ${rank.listener.endpoint}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const { by } = COLUMNS.find((column) => column.id === this.sort.id);
    const direction = this.sort.down ? -1 : 1;
    const compare = (a, b) => (typeof a === "string" ? compareNames(a, b) : a - b);
    const keyed = ranks.filter(fits).map((rank) => [by(rank), rank]);
    keyed.sort(([a, first], [b, second]) =>
      (a === b ? 0 : direction * compare(a, b)) || compareNames(first.instance, second.instance) || first.rank - second.rank);
    this.rows = keyed.map(([, rank]) => rank);
    setText(this.shown, this.rows.length === ranks.length ? plural(ranks.length, "rank") : `${whole(this.rows.length)} of ${plural(ranks.length, "rank")}`);
    this.repaint(app);
  },

  /** Draws the head and all visible lines again. */
  repaint(app) {
    const narrow = innerWidth < 760;
    const severalTiers = (this.tiers?.length ?? 0) > 1;
    if (this.legend.dataset.tiers !== String(this.tiers)) {
      this.legend.dataset.tiers = String(this.tiers);
      this.legend.replaceChildren(...(severalTiers ? [tierLegend(this.tiers)] : []));
    }
    const columns = COLUMNS.filter((column) => (narrow ? "narrow" in column : !column.tier || (severalTiers && this.tiers.includes(column.tier))));
    const signature = `${narrow} ${columns.map((column) => column.id)} ${this.sort.id} ${this.sort.down}`;
    if (signature !== this.signature) {
      this.signature = signature;
      this.columns = columns;
      this.rowPx = narrow ? TALL_ROW_PX : ROW_PX;
      this.grid.style.setProperty("--row", `${this.rowPx}px`);
      this.grid.style.setProperty("--columns", columns.map((column) => (narrow ? column.narrow : column.width)).join(" "));
      const focused = document.activeElement?.dataset?.column;
      this.head.replaceChildren(...columns.map((column) => this.headCell(column, app)));
      if (focused) this.head.querySelector(`[data-column="${focused}"]`)?.focus();
    }
    this.grid.setAttribute("aria-rowcount", this.rows.length + 1);
    this.sizer.style.height = `${this.rows.length * this.rowPx}px`;
    this.draw(true);
  },

  headCell(column, app) {
    const isSorted = this.sort.id === column.id;
    const onclick = () => {
      this.sort = { id: column.id, down: isSorted ? !this.sort.down : Boolean(column.down) };
      this.scroll.scrollTop = 0;
      this.update(app);
    };
    const arrow = isSorted ? (this.sort.down ? " ↓" : " ↑") : "";
    return el("span", { role: "columnheader", class: column.number && "number", "aria-sort": isSorted && (this.sort.down ? "descending" : "ascending") },
      el("button", { type: "button", "data-column": column.id, onclick }, column.name + arrow));
  },

  /** Draws the lines in sight; those drawn before stay unless their values are new. */
  draw(isNew = false) {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / this.rowPx) - MARGIN_ROWS);
    const end = Math.min(this.rows.length, first + Math.ceil(this.scroll.clientHeight / this.rowPx) + 2 * MARGIN_ROWS);
    for (const [at, line] of this.lines) {
      if (at < first || at >= end) {
        line.remove();
        this.lines.delete(at);
      }
    }
    for (let at = first; at < end; at += 1) {
      let line = this.lines.get(at);
      if (line && !isNew) continue;
      const rank = this.rows[at];
      if (!line) {
        line = el("div", { class: "line", role: "row", tabindex: "-1", onclick: () => this.open(this.rows[at]) });
        line.dataset.at = at;
        this.lines.set(at, line);
        this.sizer.append(line);
      }
      line.style.top = `${at * this.rowPx}px`;
      line.setAttribute("aria-rowindex", at + 2);
      line.replaceChildren(...this.columns.map((column) => el("span", { role: "gridcell", class: column.number && "number" }, column.show(rank))));
    }
    const focused = document.activeElement?.closest?.(".line");
    const reachable = focused && this.lines.has(Number(focused.dataset.at)) ? focused : this.lines.get(Math.min(end - 1, Math.ceil(this.scroll.scrollTop / this.rowPx)));
    for (const line of this.lines.values()) line.tabIndex = line === reachable ? 0 : -1;
  },

  key(event) {
    const line = event.target.closest(".line");
    if (!line) return;
    const at = Number(line.dataset.at);
    const page = Math.max(1, Math.floor(this.rowsHeight() / this.rowPx) - 1);
    const last = this.rows.length - 1;
    const target = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: last }[event.key];
    if (target !== undefined) {
      event.preventDefault();
      this.focusRow(Math.max(0, Math.min(last, target)));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.open(this.rows[at]);
    }
  },

  /** Height in which rows are visible, below the head. */
  rowsHeight() {
    return this.scroll.clientHeight - this.head.offsetHeight;
  },

  focusRow(at) {
    const top = at * this.rowPx;
    const end = top + this.rowPx - this.rowsHeight();
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (end > this.scroll.scrollTop) this.scroll.scrollTop = end;
    this.draw();
    this.lines.get(at)?.focus({ preventScroll: true });
  },

  open(rank) {
    const { listener, worker } = rank;
    const number = (value) => (value === null || value === undefined ? "–" : whole(value));
    const rejected = Object.entries(listener.rejected).map(([reason, count]) => `${reason}: ${whole(count)}`);
    const facts = [
      ["Model", rank.model], ["Tenant", rank.tenant], ["Block size", plural(worker.block_size, "token")],
      ["Trust", pill(rank.trust)], ["Why", reason(rank) || "–"], ["Connection", rank.status],
      ["Endpoint", el("span", { class: "mono" }, listener.endpoint)], ["Replay endpoint", el("span", { class: "mono" }, listener.replay_endpoint ?? "none")],
      ["Owner", listener.source ?? "manual"], ["Engine", listener.engine ?? "detected"],
      ...TIERS.map((tier) => [`Blocks, ${TIER_NAMES[tier].toLowerCase()}`, number(listener.blocks[tier])]),
      ["Last applied message", number(listener.last_seq)], ["Last received message", number(listener.received_seq)],
      ["Last event", listener.last_event_ms_ago === null ? "–" : `${duration(listener.last_event_ms_ago / 1000)} ago`],
      ["Events", `${number(listener.events)} (${rate(rank.events)}/s)`], ["Blocks stored", number(listener.stored_blocks)], ["Blocks removed", number(listener.removed_blocks)],
      ["Gaps", number(listener.gaps)], ["Rejected", rejected.join(", ") || "none"],
    ];
    if (listener.replay) facts.splice(5, 0, ["Replay", `${number(listener.replay.applied)} of ${number(listener.replay.published)} messages`]);
    this.detail.replaceChildren(
      el("h2", { tabindex: "-1", autofocus: true }, `Instance ${rank.instance}, rank ${rank.rank}`),
      el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      el("div", { class: "actions" }, el("button", { type: "button", class: "primary", onclick: () => this.detail.close() }, "Close")));
    this.detail.showModal();
  },
};
