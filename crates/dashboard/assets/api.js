// Calls of the service that serves this page.

const TOKEN = "flash-indexer-token";

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

/** Replaces the service's answer to a request without a token, which names a header that no visitor of a page can send. */
const NO_TOKEN = "the service requires a bearer token: choose Token above";

/** A response that is no success, or no response. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the service does not answer");
  }
  if (!response.ok) {
    if (response.status === 401 && !token.get()) throw new ApiError(401, NO_TOKEN);
    const text = await response.text();
    let message = text;
    try {
      message = JSON.parse(text).error ?? text;
    } catch {
      // A proxy answers in its own form.
    }
    throw new ApiError(response.status, message || `the service answered with status ${response.status}`);
  }
  return response;
}

/** Parses JSON. Whole numbers beyond 2^53 become texts of their digits, where the browser gives them. */
export function parse(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const exact = (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? context.source : value;
  return JSON.parse(text, exact);
}

export const text = async (path) => (await call(path)).text();
export const get = async (path) => parse(await text(path));

export async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  // Hashes are given as texts, and sent as numbers of any length would lose digits.
  const response = await call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  return parse(await response.text());
}

/** Yields the lines of a streamed response, one array for each chunk. Stops the transfer when the caller stops. */
export async function* lines(path, headers = {}, signal = null) {
  const control = new AbortController();
  signal?.addEventListener("abort", () => control.abort());
  const response = await call(path, { headers, signal: control.signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield parts;
    }
    if (rest) yield [rest];
  } finally {
    control.abort();
  }
}

/** Follows server-sent events, and reconnects after a loss. Calls `received` with each event, `lost` with each failure. */
export async function follow(path, received, lost, signal) {
  while (!signal.aborted) {
    try {
      for await (const part of lines(path, {}, signal)) {
        const data = part.filter((line) => line.startsWith("data: "));
        if (data.length > 0) received(data.map((line) => JSON.parse(line.slice(6))));
      }
      lost(new ApiError(0, "the service ended the stream"));
    } catch (error) {
      lost(error);
    }
    await new Promise((done) => setTimeout(done, 3000));
  }
}

/** Reads the samples of Prometheus' text format: for each name a list of labels and values. */
export function samples(exposition) {
  const found = new Map();
  for (const line of exposition.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
    }
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return found;
}
