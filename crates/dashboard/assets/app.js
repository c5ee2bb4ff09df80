// The page: views, the poll of the fleet, theme and token.

import { ApiError, get, token } from "./api.js";
import { el, sentence, setText, showTip } from "./dom.js";
import { fleet } from "./fleet.js";
import { health } from "./health.js";
import { heat, recordActivity } from "./heat.js";
import { live } from "./live.js";
import { prefixes } from "./prefixes.js";
import { query } from "./query.js";

const VIEWS = { fleet, live, query, heat, prefixes, health };
/** Time between polls; longer if the service takes long to answer. */
const POLL_MS = 2000;
const BUSY_SHARE = 5;

const main = document.getElementById("main");
const problem = document.getElementById("problem");
const ready = document.getElementById("ready");

/** State that the views share. */
const app = {
  /** Ranks of all instances, with rates since the previous poll. */
  ranks: [],
  models: [],
  /** Whether the service has answered with its ranks, so that none is a fact. */
  isRead: false,
  /** Opens a view; `given` goes to its `take`. */
  open(name, given) {
    location.hash = name;
    show(name);
    if (given !== undefined) VIEWS[name].take(given);
  },
};

let current;

function show(name) {
  const view = VIEWS[name];
  if (current === view) return;
  current?.hide?.();
  showTip("");
  current = view;
  view.element ??= view.build(app);
  main.replaceChildren(view.element);
  for (const link of document.querySelectorAll("nav a")) {
    if (VIEWS[link.hash.slice(1)] === view) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  view.show?.(app);
  view.update?.(app);
}

/** The ranks of `/workers`, with what changed since `before`. */
function ranksOf(workers, before, seconds) {
  const ranks = [];
  for (const worker of workers) {
    for (const [rank, listener] of Object.entries(worker.listeners)) {
      const key = JSON.stringify([worker.model_name, worker.tenant_id, worker.instance_id, rank]);
      const last = before.get(key);
      const since = (field) => (last ? Math.max(0, listener[field] - last.listener[field]) : 0);
      const { device, host_pinned, disk, external } = listener.blocks;
      const received = listener.replay?.published ?? (listener.received_seq === null ? 0 : listener.received_seq + 1);
      ranks.push({
        key,
        worker,
        listener,
        instance: String(worker.instance_id),
        rank: Number(rank),
        model: worker.model_name,
        tenant: worker.tenant_id,
        trust: listener.trust,
        status: listener.status,
        why: listener.last_error ?? "",
        total: device + host_pinned + disk + external,
        // Messages that are received, or known to be published, and not applied.
        lag: Math.max(0, received - (listener.last_seq === null ? 0 : listener.last_seq + 1)),
        stored: since("stored_blocks"),
        removed: since("removed_blocks"),
        events: seconds > 0 ? since("events") / seconds : 0,
      });
    }
  }
  return ranks;
}

let polledAt = 0;

async function poll() {
  const begun = performance.now();
  if (!document.hidden) {
    try {
      const workers = await get("workers");
      const now = performance.now();
      const before = new Map(app.ranks.map((rank) => [rank.key, rank]));
      app.ranks = ranksOf(workers, before, polledAt > 0 ? (now - polledAt) / 1000 : 0);
      recordActivity(app.ranks, polledAt, now);
      polledAt = now;
      const models = new Map(workers.map(({ model_name, tenant_id }) =>
        [JSON.stringify([model_name, tenant_id]), { model_name, tenant_id }]));
      app.models = [...models.values()];
      app.isRead = true;
      report(null);
      current?.update?.(app);
    } catch (error) {
      report(error);
    }
    await pollReady();
  }
  setTimeout(poll, Math.max(POLL_MS, BUSY_SHARE * (performance.now() - begun)));
}

async function pollReady() {
  let [text, state] = ["ready", "good"];
  try {
    await get("ready");
  } catch (error) {
    [text, state] = error.status === 503 ? ["not ready", "warn"] : ["no answer", "bad"];
  }
  setText(ready, text);
  ready.className = `pill ${state}`;
}

function report(error) {
  problem.hidden = error === null;
  if (error === null) return;
  if (!(error instanceof ApiError)) throw error;
  setText(problem, sentence(error.message));
}

// Theme: the system's, or the chosen one for this tab.
const THEMES = { system: "light", light: "dark", dark: "system" };
const themeButton = document.getElementById("theme");

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  sessionStorage.setItem("flash-indexer-theme", theme);
  setText(themeButton, `◐ ${theme}`);
  themeButton.setAttribute("aria-label", `Theme: ${theme}`);
  current?.repaint?.(app);
}

let theme = sessionStorage.getItem("flash-indexer-theme") ?? "system";
if (!(theme in THEMES)) theme = "system";
setTheme(theme);
themeButton.addEventListener("click", () => setTheme((theme = THEMES[theme])));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current?.repaint?.(app));

// Token.
const dialog = document.getElementById("token-dialog");
const field = document.getElementById("token");
document.getElementById("token-button").addEventListener("click", () => {
  field.value = token.get();
  dialog.showModal();
});
document.getElementById("token-cancel").addEventListener("click", () => dialog.close("cancel"));
dialog.addEventListener("close", () => {
  if (dialog.returnValue === "save") token.set(field.value.trim());
  else if (dialog.returnValue === "forget") token.set("");
  field.value = "";
  if (dialog.returnValue === "save" || dialog.returnValue === "forget") location.reload();
});

// The skip link's target is no view, so the address keeps its name.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

/** Shows the view that the address names, or Fleet. An unknown name leaves the view, and the address gets its name again. */
function follow() {
  const name = location.hash.slice(1) || "fleet";
  if (Object.hasOwn(VIEWS, name)) return show(name);
  if (!current) show("fleet");
  history.replaceState(null, "", `#${Object.keys(VIEWS).find((known) => VIEWS[known] === current)}`);
}

addEventListener("hashchange", follow);
addEventListener("resize", () => current?.repaint?.(app));
follow();
poll();

// For tests, and for people at the console.
globalThis.flashIndexer = { app, el };
