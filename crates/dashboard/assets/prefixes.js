// Prefixes: the largest shared prefixes of a model, from its dump, and their text where the service keeps prompts.

import { ApiError, lines, post } from "./api.js";
import { el, modelSelect, noEngine, plural, sentence, setText, short, showTip, svg, whole } from "./dom.js";

/** Blocks that are read of a dump, over all ranks. */
const BLOCKS_MAX = 300_000;
const FRAME_PX = 26;
const LEVELS_MAX = 24;
/** Frames narrower than this are left out. */
const NARROW_PX = 3;
const LISTED_MAX = 20;
const BLOCKS_LISTED_MAX = 256;
const HOLDERS_LISTED_MAX = 64;
/** Statuses of a prefix that has no text: prompts are not kept, none has it, or the model has no tokenizer. */
const WITHOUT_TEXT = [404, 409, 501];
/** Space above the marked text, where it is scrolled to. */
const ABOVE_PX = 64;

const node = (hash) => ({ hash, children: new Map(), holders: [] });

/** Reads a dump into a tree of local hashes. Returns the tree, the ranks, and what was left out. */
async function readDump({ model_name, tenant_id }, progress) {
  const root = node(null);
  const ranks = [];
  let [blocks, orphans, bySequence, isWhole] = [0, 0, new Map(), true];
  const query = new URLSearchParams({ model_name, tenant_id, hashes: "string" });
  reading: for await (const part of lines(`dump?${query}`, { accept: "application/x-ndjson" })) {
    for (const line of part) {
      if (!line) continue;
      const entry = JSON.parse(line);
      if (entry.rank) {
        ranks.push(`${entry.rank.instance_id} / ${entry.rank.dp_rank}`);
        bySequence = new Map();
      }
      const stored = entry.event?.data?.stored;
      if (!stored) continue;
      let parent = stored.parent_hash === null ? root : bySequence.get(stored.parent_hash);
      for (const { block_hash, tokens_hash } of stored.blocks) {
        if (!parent) {
          // Its parent was never stored, so no prompt finds it.
          orphans += 1;
          continue;
        }
        if (blocks >= BLOCKS_MAX) {
          isWhole = false;
          break reading;
        }
        blocks += 1;
        let child = parent.children.get(tokens_hash);
        if (!child) parent.children.set(tokens_hash, (child = node(tokens_hash)));
        const rank = ranks.length - 1;
        if (child.holders.at(-1) !== rank) child.holders.push(rank);
        bySequence.set(block_hash, child);
        parent = child;
      }
    }
    progress(blocks);
  }
  return { root, ranks, blocks, orphans, isWhole };
}

/** Joins chains of blocks with the same holders into runs. A run's weight is the number of blocks held in and below it. */
function runsOf(root) {
  const top = { from: 0, hashes: [], holders: [], children: [], weight: 0, parent: null, level: 0 };
  const all = [top];
  const pending = [[root, top]];
  while (pending.length > 0) {
    const [start, parent] = pending.pop();
    for (let at of start.children.values()) {
      const run = { from: parent.from + parent.hashes.length, hashes: [at.hash], holders: at.holders, children: [], weight: 0, parent, level: parent.level + 1 };
      while (at.children.size === 1) {
        const [only] = at.children.values();
        if (only.holders.length !== at.holders.length) break;
        at = only;
        run.hashes.push(at.hash);
      }
      parent.children.push(run);
      all.push(run);
      pending.push([at, run]);
    }
  }
  // Children follow their parents in `all`.
  for (let at = all.length - 1; at >= 0; at -= 1) {
    const run = all[at];
    run.weight += run.hashes.length * run.holders.length;
    if (run.parent) run.parent.weight += run.weight;
    run.children.sort((a, b) => b.weight - a.weight);
  }
  return { top, all };
}

const depthOf = (run) => run.from + run.hashes.length;

function pathOf(run) {
  const hashes = [];
  for (let at = run; at; at = at.parent) hashes.unshift(...at.hashes);
  return hashes;
}

export const prefixes = {
  build(app) {
    this.app = app;
    this.model = modelSelect("Model");
    this.button = el("button", { type: "button", class: "primary", onclick: () => this.read() }, "Read the index");
    this.status = el("span", { class: "muted small", role: "status" }, "Not read yet.");
    this.flame = svg("svg", { class: "flame", role: "group", "aria-label": "Prefixes" });
    this.crumbs = el("div", { class: "actions" });
    this.list = el("tbody", {});
    this.detail = el("div", { class: "panel", hidden: true, "aria-live": "polite" });
    this.result = el("div", { hidden: true },
      el("div", { class: "panel" }, el("h2", {}, "Flame graph"),
        el("p", { class: "muted small" }, "A frame is a run of blocks with the same holders; prompts grow downwards. Its width is the number of blocks held in and below it, its colour the number of holders. Choose a frame to go into it."),
        this.flame, this.crumbs),
      this.detail,
      el("div", { class: "panel" }, el("h2", {}, "Largest shared prefixes"),
        el("p", { class: "muted small" }, "Shared blocks are those that the holders after the first have again: blocks × (holders − 1)."),
        el("div", { class: "scroll-x" }, el("table", { class: "shared" }, el("thead", {}, el("tr", {}, ["", "Shared blocks", "Blocks", "Tokens", "Holders"].map((name, at) => el("th", { class: at > 0 && "number" }, name)), el("th", { class: "number hash" }, "Last local hash"))), this.list))));
    return el("section", { "aria-label": "Prefixes" },
      el("div", { class: "row" }, this.model.element, this.button, this.status),
      el("p", { class: "muted small" }, `This reads /dump, which needs the scope admin; writers hand out each rank in bounded parts. At most ${whole(BLOCKS_MAX)} blocks are read. The index has hashes only; the text of a prefix is shown if the service keeps prompts (--prompt-text-bytes).`),
      this.result);
  },

  update(app) {
    this.model.update(app.models);
  },

  async read() {
    const model = this.model.value();
    if (model === null) return this.status.replaceChildren(...noEngine());
    this.button.disabled = true;
    this.status.className = "muted small";
    try {
      const read = await readDump(model, (blocks) => setText(this.status, `${whole(blocks)} blocks read`));
      const { top, all } = runsOf(read.root);
      const blockSize = this.app.ranks.find((rank) => rank.model === model.model_name && rank.tenant === model.tenant_id)?.worker.block_size ?? 1;
      Object.assign(this, { read_: read, of: model, top, blockSize });
      this.most = all.reduce((most, run) => Math.max(most, run.holders.length), 1);
      setText(this.status, `${plural(read.blocks, "block")} of ${plural(read.ranks.length, "rank")}` +
        (read.isWhole ? "" : `; the dump has more, so holders may be missing`) + (read.orphans > 0 ? `; ${plural(read.orphans, "block")} without a parent left out` : ""));
      this.result.hidden = false;
      this.detail.hidden = true;
      this.rank(all);
      this.zoom(top);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.status.className = "problem";
      setText(this.status, sentence(error.message));
    } finally {
      this.button.disabled = false;
    }
  },

  rank(all) {
    const shared = (run) => depthOf(run) * (run.holders.length - 1);
    const found = all.filter((run) => run.holders.length > 1).sort((a, b) => shared(b) - shared(a)).slice(0, LISTED_MAX);
    this.list.replaceChildren(...found.map((run) => el("tr", {},
      el("td", {}, el("button", { type: "button", onclick: () => this.choose(run) }, "Show")),
      [shared(run), depthOf(run), depthOf(run) * this.blockSize, run.holders.length].map((value) => el("td", { class: "number" }, whole(value))),
      el("td", { class: "number mono hash" }, run.hashes.at(-1)))));
    if (found.length === 0) this.list.append(el("tr", {}, el("td", { colspan: 6, class: "muted" }, "No two ranks hold the same prefix.")));
  },

  choose(run) {
    this.zoom(run);
    this.explain(run);
    this.flame.scrollIntoView({ block: "nearest" });
  },

  zoom(run) {
    this.zoomed = run;
    const path = [];
    for (let at = run; at; at = at.parent) path.unshift(at);
    this.crumbs.replaceChildren(...(path.length > 1 ? [el("button", { type: "button", onclick: () => this.zoom(this.top) }, "All prefixes"), el("button", { type: "button", onclick: () => this.zoom(run.parent) }, "Up")] : []));
    this.repaint();
  },

  repaint() {
    if (!this.zoomed || this.flame.clientWidth === 0) return;
    const width = this.flame.clientWidth;
    const base = this.zoomed.level;
    const frames = [];
    const pending = [[this.zoomed, 0, width]];
    let levels = 0;
    while (pending.length > 0) {
      const [run, x, wide] = pending.pop();
      if (wide < NARROW_PX || run.level - base >= LEVELS_MAX) continue;
      levels = Math.max(levels, run.level - base + 1);
      frames.push(this.frame(run, x, wide, (run.level - base) * FRAME_PX));
      let left = x;
      for (const child of run.children) {
        const part = (wide * child.weight) / run.weight;
        pending.push([child, left, part]);
        left += part;
      }
    }
    this.flame.setAttribute("height", levels * FRAME_PX);
    this.flame.setAttribute("viewBox", `0 0 ${width} ${levels * FRAME_PX}`);
    this.flame.replaceChildren(...frames);
  },

  frame(run, x, width, y) {
    const isTop = run === this.top;
    const name = isTop ? "all prompts" : `${short(run.hashes.length)} × ${run.holders.length}`;
    const title = isTop ? "All prompts" : `Blocks ${run.from} to ${depthOf(run) - 1}, ${plural(run.holders.length, "holder")}, ${plural(run.weight, "block")} held in and below`;
    const share = this.most > 1 ? (run.holders.length - 1) / (this.most - 1) : 0;
    const act = () => {
      if (run !== this.zoomed) this.zoom(run);
      if (!isTop) this.explain(run);
      this.flame.querySelector("g")?.focus();
    };
    const rect = svg("rect", { x, y, width, height: FRAME_PX, rx: 3, fill: isTop ? "#c9d1dc" : `hsl(212 ${55 + 35 * share}% ${88 - 26 * share}%)` });
    const onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
    };
    return svg("g", {
      role: "button", tabindex: width > 24 ? "0" : "-1", "aria-label": title, onclick: act, onkeydown,
      onpointermove: (event) => showTip(title, event.clientX, event.clientY), onpointerleave: () => showTip(""),
    }, rect, width > 8 * name.length + 8 ? svg("text", { x: x + 6, y: y + FRAME_PX / 2 + 4 }, name) : null);
  },

  explain(run) {
    const first = run.holders.slice(0, HOLDERS_LISTED_MAX).map((rank) => this.read_.ranks[rank]).join(", ");
    const rest = run.holders.length - HOLDERS_LISTED_MAX;
    const hashes = run.hashes.slice(0, BLOCKS_LISTED_MAX);
    const text = el("div", { class: "text", "aria-live": "off" });
    this.detail.hidden = false;
    this.detail.replaceChildren(
      el("h2", {}, `Blocks ${run.from} to ${depthOf(run) - 1}`),
      el("dl", {}, el("dt", {}, "Prefix"), el("dd", {}, `${plural(depthOf(run), "block")}, ${plural(depthOf(run) * this.blockSize, "token")}`),
        el("dt", {}, "Holders"), el("dd", {}, `${run.holders.length}: ${first}${rest > 0 ? ` and ${rest} others` : ""}`),
        el("dt", {}, "Continued by"), el("dd", {}, plural(run.children.length, "different block"))),
      text,
      el("div", { class: "actions" }, el("button", { type: "button", class: "primary", onclick: () => this.app.open("query", { model: this.of, hashes: pathOf(run) }) }, "Query this prefix")),
      el("details", {}, el("summary", {}, `Local hashes of ${plural(run.hashes.length, "block")}`),
        el("table", {}, el("tbody", {}, hashes.map((hash, at) => el("tr", {}, el("td", { class: "number" }, run.from + at), el("td", { class: "mono" }, hash))))),
        run.hashes.length > hashes.length ? el("p", { class: "muted" }, `The first ${BLOCKS_LISTED_MAX} are listed.`) : null));
    this.showText(run, text);
  },

  /** Shows the text of a run after that of its ancestors, or why it has none. */
  async showText(run, place) {
    this.reading?.abort();
    const { signal } = (this.reading = new AbortController());
    try {
      const found = await post("text_by_hash", { ...this.of, block_hashes: pathOf(run), from_block: run.from }, signal);
      const own = el("mark", {}, found.text, found.text_cut ? "…" : null);
      const name = `Text of blocks ${run.from} to ${depthOf(run) - 1}`;
      const shown = el("pre", { class: "prompt", tabindex: "0", role: "region", "aria-label": name },
        found.before ? el("span", {}, found.before_cut ? "…" : null, found.before) : null, own);
      place.replaceChildren(shown, el("p", { class: "muted small" },
        `From a prompt that this replica was asked about. The text of these blocks is marked${run.from > 0 ? ", that of the blocks before them is not" : ""}.` +
        (found.before_cut || found.text_cut ? " … stands for text that is left out." : "")));
      shown.scrollTop = own.offsetTop - ABOVE_PX;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      // Options are names that are not broken between lines.
      const hasNone = WITHOUT_TEXT.includes(error.status);
      const why = (hasNone ? error.message : sentence(error.message)).split(/(--[a-z-]+)/).map((part, at) => (at % 2 === 1 ? el("code", {}, part) : part));
      place.replaceChildren(hasNone ? el("p", { class: "muted" }, "No text: ", why) : el("p", { class: "problem" }, why));
    }
  },
};
