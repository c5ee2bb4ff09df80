// Line charts over time, on a canvas.

import { colour, el, fitted, setText, showTip } from "./dom.js";

const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 22;

/** The smallest of these steps times a power of ten that is not below `value`. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.6, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}

/** A chart of series, each with a name. `format` shows a value; `max` is a fixed upper end; `from` is the lower end of a logarithmic axis. */
export function lineChart({ title, series, format, max, from }) {
  const now = el("span", {});
  const canvas = el("canvas", { role: "img", "aria-label": title });
  const element = el("div", { class: "panel chart" }, el("h2", {}, title, now), canvas,
    series.length > 1 ? el("div", { class: "legend" }, series.map(({ name }, at) => el("span", {}, el("i", { class: `s${at + 1}` }), name))) : null);
  let points = [];
  let span = 180;
  let hovered = null;

  const xOf = (point, width) => width - RIGHT - ((points.at(-1).at - point.at) / span) * (width - LEFT - RIGHT);

  function draw() {
    if (!canvas.isConnected || canvas.clientWidth === 0) return;
    const { context, width, height } = fitted(canvas, HEIGHT);
    const [text, grid, surface] = ["muted", "line", "surface"].map(colour);
    const values = points.flatMap((point) => point.values).filter(Number.isFinite);
    const highest = Math.max(from ? 100 * from : 1, ...values);
    const top = max ?? (from ? 10 ** Math.ceil(Math.log10(highest)) : rounded(highest * 1.05));
    const decades = from ? Math.round(Math.log10(top / from)) : 0;
    const share = (value) => (from ? Math.log10(Math.max(value, from) / from) / decades : value / top);
    const yOf = (value) => height - BOTTOM - Math.min(1, share(value)) * (height - TOP - BOTTOM);
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 1;
    const steps = from ? decades : 4;
    for (let step = 0; step <= steps; step += 1) {
      const value = from ? from * 10 ** step : (top * step) / steps;
      const y = Math.round(yOf(value)) + 0.5;
      context.strokeStyle = grid;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - RIGHT, y);
      context.stroke();
      context.fillStyle = text;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(format(value), LEFT - 6, y);
    }
    context.textBaseline = "alphabetic";
    for (const [seconds, align] of [[span, "left"], [(span * 2) / 3, "center"], [span / 3, "center"], [0, "right"]]) {
      const x = width - RIGHT - (seconds / span) * (width - LEFT - RIGHT);
      context.textAlign = align;
      context.fillText(seconds === 0 ? "now" : `−${Math.round(seconds)} s`, x, height - 6);
    }
    if (points.length === 0) {
      context.textAlign = "center";
      context.fillText("waiting for samples", (LEFT + width) / 2, height / 2);
      return;
    }
    series.forEach((_, at) => {
      context.strokeStyle = colour(`series-${at + 1}`);
      context.lineWidth = 2;
      context.lineJoin = "round";
      context.beginPath();
      let isDown = false;
      for (const point of points) {
        const value = point.values[at];
        const x = xOf(point, width);
        if (x < LEFT || !Number.isFinite(value)) {
          isDown = false;
          continue;
        }
        if (isDown) context.lineTo(x, yOf(value));
        else context.moveTo(x, yOf(value));
        isDown = true;
      }
      context.stroke();
    });
    if (hovered && points.includes(hovered)) {
      const x = Math.round(xOf(hovered, width)) + 0.5;
      context.strokeStyle = text;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, TOP);
      context.lineTo(x, height - BOTTOM);
      context.stroke();
      series.forEach((_, at) => {
        if (!Number.isFinite(hovered.values[at])) return;
        context.beginPath();
        context.arc(x, yOf(hovered.values[at]), 4, 0, 7);
        context.fillStyle = colour(`series-${at + 1}`);
        context.strokeStyle = surface;
        context.lineWidth = 2;
        context.fill();
        context.stroke();
      });
    }
  }

  const shown = (values) => series.map(({ name }, at) => `${series.length > 1 ? `${name} ` : ""}${Number.isFinite(values[at]) ? format(values[at]) : "–"}`);

  canvas.addEventListener("pointermove", (event) => {
    if (points.length === 0) return;
    const { left, width } = canvas.getBoundingClientRect();
    const distance = (point) => Math.abs(xOf(point, width) - (event.clientX - left));
    hovered = points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
    showTip([`${Math.round(points.at(-1).at - hovered.at)} s ago`, ...shown(hovered.values)].join("\n"), event.clientX, event.clientY);
    draw();
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    showTip("");
    draw();
  });

  return {
    element,
    draw,
    /** Sets the points, each with a time in seconds and a value for each series. */
    set(given, seconds) {
      [points, span] = [given, seconds];
      const latest = points.length > 0 ? shown(points.at(-1).values).join("  ·  ") : "–";
      setText(now, latest);
      canvas.setAttribute("aria-label", `${title}: ${latest}`);
      draw();
    },
  };
}
