// Elements and formats. Texts of engines and users become text nodes only.

/** Makes an element. Attributes named `on…` are listeners; children are elements or texts. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Makes an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Changes an element's text only if it differs, so that screen readers and selections keep their place. */
export function setText(element, text) {
  const shown = String(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** An error message as a sentence of its own. A name of code at its beginning keeps its letters. */
export const sentence = (message) => message.replace(/^[a-z](?=[a-z]*[ ,])/, (letter) => letter.toUpperCase());

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });

const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Orders names; numbers in them by their value. */
export const compareNames = (a, b) => COLLATOR.compare(a, b);

/** A count with all digits. */
export const whole = (count) => (typeof count === "string" ? count : WHOLE.format(count));
/** A count; from 1000 on with three digits and a unit. */
export const short = (count) => (Math.abs(count) < 1000 ? whole(count) : SHORT.format(count));
/** A rate each second. */
export const rate = (value) => (value > 0 && value < 10 ? value.toFixed(1) : short(Math.round(value)));

/** A time in seconds. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3).replace(/\.?0+$/, (zeros) => (zeros.startsWith(".") ? "" : zeros))} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1).replace(".0", "") : Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

export const TIERS = ["device", "host_pinned", "disk", "external"];
export const TIER_NAMES = { device: "Device", host_pinned: "Host", disk: "Disk", external: "External" };

/** The legend of the tiers. */
export function tierLegend(tiers = TIERS) {
  return el("div", { class: "legend" }, tiers.map((tier) => el("span", {}, el("i", { class: tier }), TIER_NAMES[tier])));
}

export const pill = (state) => el("span", { class: `pill ${state}` }, state);

/** A select of the models and tenants of the fleet, kept up to date by `update`. */
export function modelSelect(label) {
  const select = el("select", { "aria-label": label });
  let known = "";
  return {
    element: el("label", {}, label, select),
    /** The chosen model and tenant; null without any. */
    value: () => (select.value === "" ? null : JSON.parse(select.value)),
    choose(value) {
      select.value = JSON.stringify(value);
    },
    update(models) {
      const now = JSON.stringify(models);
      if (now === known) return;
      known = now;
      const chosen = select.value;
      select.replaceChildren(...models.map(({ model_name, tenant_id }) => {
        const text = tenant_id === "default" ? model_name : `${model_name} (${tenant_id})`;
        return el("option", { value: JSON.stringify({ model_name, tenant_id }) }, text);
      }));
      if ([...select.options].some((option) => option.value === chosen)) select.value = chosen;
    },
  };
}

/** Characters that a cut name keeps at its end, where the pods of one deployment differ, and their addresses before the port. */
const END = /.{0,5}(:\d{1,5})?$/su;

/** The beginning and the end of a name. */
function halves(name) {
  const at = name.search(END);
  return [name.slice(0, at), name.slice(at)];
}

const ruler = document.createElement("canvas").getContext("2d");

/** Width of a bold text, in its own font sizes. */
function emsOf(text) {
  ruler.font = `600 100px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width / 100;
}

/** A name that the style sheet cuts in its middle where it has no room. */
export function nameCell(name) {
  const [start, end] = halves(name);
  const cell = el("b", { class: "name", title: name }, start ? el("span", {}, start) : null, end);
  if (start) cell.style.setProperty("--end", `${emsOf(end) + 0.05}em`);
  return cell;
}

/** The longest form of a name that fits: the name itself, or one that is cut in its middle. */
export function cutName(name, fits) {
  let [start, end] = halves(name);
  let shown = name;
  while (start && !fits(shown)) {
    start = start.replace(/.$/su, "");
    shown = `${start}…${end}`;
  }
  return shown;
}

const code = (text) => el("code", {}, text);

/** What an operator can do whose service has no engine. */
export const noEngine = () => [
  "No engine is registered. Register one with ", code("POST /register"), ", name a discovery source (", code("serve --discovery-kubernetes"), ", ", code("--discovery-dns"), ", ",
  code("--discovery-file"), "), or start ", code("serve --demo"), " for simulated engines.",
];

const tip = el("div", { class: "tip", hidden: true, role: "tooltip" });

/** Shows a text beside the pointer; hides it without one. */
export function showTip(text, x = 0, y = 0) {
  if (!tip.isConnected) document.body.append(tip);
  tip.hidden = !text;
  if (!text) return;
  setText(tip, text);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 16 + height > innerHeight ? y - height - 8 : y + 16}px`;
}

/** The value of a colour variable of the style sheet. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Fits a canvas to its size on the screen. Returns its context in CSS pixels. */
export function fitted(canvas, height) {
  const width = canvas.clientWidth;
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
