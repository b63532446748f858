// Calls to the service: the key is kept in this tab's memory only.

let apiKey = "";

export function setKey(key) { apiKey = key.trim(); }

export function hasKey() { return apiKey !== ""; }

// Names the key without telling it, for what tabs of equal rights share; null where the browser cannot.
export async function keyDigest() {
  if (!globalThis.crypto?.subtle) return null;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`rayinfer ${apiKey}`));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// An answer that is an error, with its status and after how many seconds to try again; without one there was no answer.
export class ServiceError extends Error {
  constructor(status, message, retryAfterS = 0) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

export function url(path) { return new URL(path.replace(/^\//, ""), document.baseURI); }

export async function call(path, { body, signal, method } = {}) {
  const headers = {};
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url(path), {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers, signal, credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) { throw error.name === "AbortError" ? error : new ServiceError(undefined, "The service is unreachable."); }
  if (!response.ok) {
    const retryAfterS = Number(response.headers.get("Retry-After")) || 0;
    const text = response.status === 401 && !apiKey ? "This service needs an API key: enter it at the top of the page." : await errorText(response);
    throw new ServiceError(response.status, text, retryAfterS);
  }
  return response;
}

export async function readJson(path, options) { return (await call(path, options)).json(); }

async function errorText(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text), found = body.error?.message ?? body.error ?? body.message;
    return typeof found === "string" ? found : text;
  } catch { return text || `${response.status} ${response.statusText}`; }
}

// Yields the decoded `data` of server-sent events, until the stream ends or `[DONE]`, which an answer must have.
export async function* events(response, { isAnswer = false } = {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const pieces = []; // of a frame that is not whole: joined once, as a frame may be megabytes long
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new ServiceError(undefined, "The connection was lost.");
      });
      if (done && isAnswer) throw new ServiceError(undefined, "The connection was closed before the answer's end.");
      if (done) return;
      pieces.push(value);
      if (!value.includes("\n")) continue;
      const frames = pieces.join("").split("\n\n");
      pieces.length = 0;
      pieces.push(frames.pop());
      for (const frame of frames) {
        if (!frame.startsWith("data: ")) continue;
        if (frame === "data: [DONE]") return;
        const event = JSON.parse(frame.slice(6));
        if (event.error) throw new ServiceError(event.error.code ?? 500, event.error.message ?? "The stream failed.");
        yield event;
      }
    }
  } finally { reader.cancel().catch(() => {}); }
}

// Models that do one of the tasks.
export async function modelsThat(...tasks) {
  const { data } = await readJson("v1/models");
  return data.filter((model) => !model.tasks || model.tasks.some((task) => tasks.includes(task)));
}
