// Query: where the instances hold a prompt, and why each match ends.

import { ApiError, post } from "./api.js";
import { TIER_NAMES, compareNames, el, modelSelect, noEngine, pill, plural, sentence, setText, tierLegend, whole } from "./dom.js";

/** Instances whose matches are drawn. */
const SHOWN_MAX = 50;
/** Up to this many instances are explained in one request; of more, the deepest by themselves. */
const EXPLAINED_MAX = 32;
const ENDS = { device: "gpu", host_pinned: "cpu", disk: "disk", external: "longest_matched" };

const TOKEN_MAX = 2n ** 32n - 1n;
/** Engines write a local hash with or without a sign. */
const HASH_MIN = -(2n ** 63n);
const HASH_MAX = 2n ** 64n - 1n;

/** The whole numbers of a text, as texts, with any separators; `0x` numbers too. */
function numbers(text, least, most) {
  const found = text.split(/[\s,;[\]]+/).filter(Boolean);
  for (const number of found) {
    if (!/^(-?\d+|0[xX][0-9a-fA-F]+)$/.test(number)) throw new ApiError(0, `"${number}" is not a whole number`);
    const value = BigInt(number);
    if (value < least || value > most) throw new ApiError(0, `"${number}" is not between ${least} and ${most}`);
  }
  return found;
}

const FORMS = {
  text: { hint: "The text of a prompt. The service needs a tokenizer for the model.", read: (text) => ({ prompt: text }) },
  tokens: { hint: "Token ids, separated by commas or spaces. A partial last block never counts.", read: (text) => ({ token_ids: numbers(text, 0n, TOKEN_MAX).map(Number) }) },
  hashes: { hint: "Local hashes of the prompt's blocks, decimal or 0x, separated by commas or spaces.", read: (text) => ({ block_hashes: numbers(text, HASH_MIN, HASH_MAX) }) },
};

export const query = {
  build(app) {
    this.model = modelSelect("Model");
    this.form = el("select", { onchange: () => this.hint() }, Object.keys(FORMS).map((form) => el("option", { value: form }, form)));
    this.form.value = "tokens";
    this.text = el("textarea", { spellcheck: "false", required: true, placeholder: "1, 2, 3, …" });
    this.hinted = el("span", {});
    this.adapter = el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    this.salt = el("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    this.button = el("button", { class: "primary" }, "Query");
    this.summary = el("p", { role: "status" });
    this.results = el("div", {});
    this.legend = tierLegend();
    this.panel = el("div", { class: "panel", hidden: true }, this.summary, this.legend, this.results);
    const onsubmit = (event) => {
      event.preventDefault();
      this.run(app);
    };
    const onkeydown = (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.element.querySelector("form").requestSubmit();
    };
    this.hint();
    return el("section", { "aria-label": "Query" },
      el("form", { class: "panel", onsubmit, onkeydown },
        el("div", { class: "row" }, this.model.element, el("label", {}, "Prompt as", this.form), el("label", {}, "Adapter", this.adapter), el("label", {}, "Cache salt", this.salt)),
        el("label", { class: "wide" }, "Prompt", this.text),
        el("div", { class: "actions" }, this.button, el("span", { class: "muted small" }, this.hinted))),
      this.panel);
  },

  hint() {
    setText(this.hinted, FORMS[this.form.value].hint);
  },

  update(app) {
    this.model.update(app.models);
  },

  /** Queries a prefix of another view: its model and local hashes. */
  take({ model, hashes }) {
    this.model.choose(model);
    this.form.value = "hashes";
    this.hint();
    this.text.value = hashes.join(", ");
    this.element.querySelector("form").requestSubmit();
  },

  async run(app) {
    this.running?.abort();
    const running = (this.running = new AbortController());
    this.panel.hidden = false;
    setText(this.summary, "querying");
    this.summary.className = "";
    this.results.replaceChildren();
    this.legend.hidden = true;
    try {
      const model = this.model.value();
      if (model === null) return this.summary.replaceChildren(...noEngine());
      let prompt = FORMS[this.form.value].read(this.text.value);
      const scope = { ...model, lora_name: this.adapter.value || null, cache_salt: this.salt.value || null };
      if ("prompt" in prompt) {
        const { tokens } = await post("tokenize", { ...scope, ...prompt }, running.signal);
        prompt = { token_ids: tokens };
      }
      const path = "token_ids" in prompt ? "query" : "query_by_hash";
      const answer = await post(path, { ...scope, ...prompt }, running.signal);
      await this.draw(app, { scope, prompt, answer, signal: running.signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      this.summary.className = "problem";
      setText(this.summary, sentence(error.message));
    }
  },

  async draw(app, { scope, prompt, answer, signal }) {
    const of = app.ranks.find((rank) => rank.model === scope.model_name && rank.tenant === scope.tenant_id);
    const blockSize = of?.worker.block_size ?? 1;
    const tokens = prompt.token_ids?.length ?? prompt.block_hashes.length * blockSize;
    const blocks = Math.floor(tokens / blockSize);
    const found = Object.entries(answer.instances).map(([instance, match]) => ({ instance, match }));
    found.sort((a, b) => b.match.gpu - a.match.gpu || b.match.longest_matched - a.match.longest_matched || compareNames(a.instance, b.instance));
    const best = found[0]?.match.longest_matched ?? 0;
    setText(this.summary, `${plural(tokens, "token")}, ${plural(blocks, "whole block")} of ${blockSize}. ` +
      (best > 0 ? `The deepest match has ${plural(best, "token")}.` : "No instance holds a prefix."));
    const shown = found.slice(0, SHOWN_MAX).map(({ instance, match }) => this.match(instance, match, blocks, blockSize));
    this.results.replaceChildren(...shown.map(({ element }) => element));
    this.legend.hidden = this.results.querySelector(".track i") === null;
    if (found.length > SHOWN_MAX) this.results.append(el("p", { class: "muted" }, `${whole(found.length - SHOWN_MAX)} further instances hold no more.`));

    const explain = async (instance_id) => post("explain?hashes=string", { ...scope, ...prompt, instance_id }, signal);
    if (found.length <= EXPLAINED_MAX) {
      const { ranks, absent } = await explain(null);
      for (const one of shown) one.explain(ranks.filter((rank) => String(rank.instance_id) === one.instance), blocks);
      for (const { instance_id, dp_rank, why } of absent) {
        this.results.append(el("div", { class: "match muted" }, `Instance ${instance_id}${dp_rank === null || dp_rank === undefined ? "" : `, rank ${dp_rank}`}: ${why}`));
      }
    } else {
      for (const one of shown) {
        one.offer(async () => one.explain((await explain(one.instance)).ranks, blocks));
      }
    }
  },

  /** The bar of one instance, to which explanations are added. */
  match(instance, match, blocks, blockSize) {
    const track = el("div", { class: "track", role: "img", "aria-label": `Instance ${instance}: ${plural(match.gpu, "token")} in device memory, ${plural(match.longest_matched, "token")} in all tiers` });
    const percent = (tokens) => (blocks === 0 ? 0 : (100 * tokens) / (blocks * blockSize));
    let from = 0;
    for (const [tier, field] of Object.entries(ENDS)) {
      const to = match[field];
      if (to > from) {
        const part = el("i", { class: tier, title: `${TIER_NAMES[tier]}: blocks ${from / blockSize} to ${to / blockSize - 1}` });
        part.style.left = `${percent(from)}%`;
        part.style.width = `${percent(to - from)}%`;
        track.append(part);
        from = to;
      }
    }
    const why = el("ul", { class: "small" });
    const scale = el("div", { class: "scale", "aria-hidden": "true" }, el("span", {}, "block 0"), el("span", {}, whole(blocks)));
    const element = el("div", { class: "match" },
      el("div", { class: "title" }, el("span", {}, el("b", {}, instance), " ", pill(match.trust)),
        el("span", { class: "small" }, `${plural(match.gpu, "token")} in device memory` + (match.longest_matched > match.gpu ? `, ${whole(match.longest_matched)} in all tiers` : ""))),
      track, scale, why);
    return {
      instance,
      element,
      explain(ranks, blocks) {
        why.replaceChildren();
        for (const rank of ranks) {
          for (const end of rank.ends) {
            if (end.position < blocks) {
              const mark = el("i", { class: "end" });
              mark.style.left = `calc(${(100 * end.position) / blocks}% - 1px)`;
              track.append(mark);
            }
            const head = ranks.length > 1 ? `Rank ${rank.dp_rank}, block ` : "Block ";
            why.append(el("li", {}, `${head}${end.position}: `, el("b", {}, end.reason.replaceAll("_", " ")), ` — ${end.why}`));
          }
        }
      },
      offer(explain) {
        const onclick = async () => {
          button.disabled = true;
          try {
            await explain();
          } catch (error) {
            if (error.name !== "AbortError") why.replaceChildren(el("li", {}, error.message));
          }
        };
        const button = el("button", { type: "button", onclick }, "Explain");
        why.append(el("li", {}, button));
      },
    };
  },
};
