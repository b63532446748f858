// Recent requests, and one request's life as a waterfall.

import { readJson } from "./api.js";
import { button, clockTime, el, number, seconds, setText } from "./elements.js";
import { inSlices } from "./slices.js";
import { waterfall } from "./waterfall.js";

const REFRESH_MS = 2000;
const ROWS_A_SLICE = 10;
const COLUMNS = ["Received", "Request", "Model", "State", "Prompt", "Cached", "Output", "Queue", "First token", "Total", "Engines"];
const HINT = "The latest requests. An id leads to that request's life; the chat has a link, trace, under each answer.";

export function requestsView(view, id) {
  const input = el("input", { type: "text", value: id, "aria-label": "Request id", placeholder: "id, such as chatcmpl-…", spellcheck: "false", maxlength: 1000 });
  const result = el("div", { class: "trace" });
  const search = () => { location.hash = input.value.trim() ? `#requests/${encodeURIComponent(input.value.trim())}` : "#requests"; };
  input.addEventListener("keydown", (key) => { if (key.key === "Enter") search(); });
  view.append(el("h1", {}, "Requests"),
    el("div", { class: "row" }, input, button("Show", search, { class: "primary" }), id ? el("a", { href: "#requests" }, "All recent requests") : null), result);
  return { leave: id ? followTrace(result, id) : followRecent(result) };
}

// Calls `read` again and again until it returns true; returns how to end that. What may be mended by itself does not end it.
function repeated(read, onError) {
  let timer = 0, isOver = false;
  const again = async () => {
    let isDone = false;
    try { isDone = await read(() => !isOver); } catch (error) {
      if (!isOver) onError(error);
      isDone = error.status < 500 && error.status !== 429; // switched off, or the key may not
    }
    if (!isOver && !isDone) timer = setTimeout(again, REFRESH_MS);
  };
  again();
  return () => { isOver = true; clearTimeout(timer); };
}

// A request's traces, read again until it has finished.
function followTrace(result, id) {
  const trouble = el("p", { class: "error", role: "alert" }), traces = el("div", { class: "trace" });
  result.append(trouble, traces);
  let shown = "";
  return repeated(async (isWanted) => {
    const { data } = await readJson(`v1/requests/${encodeURIComponent(id)}/trace`);
    const now = JSON.stringify(data);
    if (isWanted() && now !== shown) await showTraces(traces, data, isWanted);
    shown = now;
    setText(trouble, "");
    return data.every((trace) => trace.events.at(-1)?.name === "finished");
  }, (error) => setText(trouble, error.message));
}

// Whether the events are open, and where they are scrolled to, stays as it is.
async function showTraces(traces, data, isWanted) {
  const before = [...traces.querySelectorAll("details")].map((each) => each.open);
  const cards = data.map((trace, index) => waterfall(trace, before[index]));
  traces.replaceChildren();
  await inSlices(cards, 1, (card) => traces.append(card), isWanted);
}

function followRecent(result) {
  const rows = el("tbody"), known = new Map();
  const notice = el("p", { class: "figures", role: "status" }, HINT);
  result.append(notice, el("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Recent requests" },
    el("table", {}, el("thead", {}, el("tr", {}, COLUMNS.map((name) => el("th", { scope: "col" }, name)))), rows)));
  return repeated(async (isWanted) => {
    const { data } = await readJson("v1/requests?limit=100");
    if (isWanted()) await showRows(rows, known, data, isWanted);
    setText(notice, data.length ? HINT : "No request has come in the last ten minutes.");
    return false;
  }, (error) => setText(notice, error.message));
}

// Rows that have not changed stay where they are, and keep the focus.
async function showRows(rows, known, data, isWanted) {
  const wanted = new Set(data.map(keyOf));
  for (const [key, { element }] of known) if (!wanted.has(key)) { element.remove(); known.delete(key); }
  let place = rows.firstElementChild;
  const show = (request) => {
    const text = JSON.stringify(request), before = known.get(keyOf(request));
    if (before?.text === text && before.element === place) { place = place.nextElementSibling; return; }
    const element = before?.text === text ? before.element : row(request);
    const hasFocus = before?.element.contains(document.activeElement);
    if (before && before.element !== element) {
      if (before.element === place) place = place.nextElementSibling;
      before.element.remove();
    }
    rows.insertBefore(element, place);
    known.set(keyOf(request), { text, element });
    if (hasFocus) element.querySelector("a").focus({ preventScroll: true });
  };
  const changed = data.filter((request) => known.get(keyOf(request))?.text !== JSON.stringify(request));
  await inSlices(data, changed.length > ROWS_A_SLICE ? ROWS_A_SLICE : data.length, show, isWanted);
}

// Clients may give an id twice.
function keyOf({ id, received_s: received }) { return `${received} ${id}`; }

function row(request) {
  const reasons = request.finish_reasons.join(", ");
  const cells = [clockTime(request.received_s),
    el("a", { href: `#requests/${encodeURIComponent(request.id)}`, class: "id", dir: "auto", title: request.id.slice(0, 1000) }, request.id.slice(0, 80)),
    el("span", { dir: "auto" }, request.model, request.tenant ? el("span", { class: "muted" }, ` · ${request.tenant}`) : null),
    request.state === "finished" ? reasons : request.state,
    number(request.prompt_tokens || null), number(request.prompt_tokens ? request.cached_tokens : null), number(request.output_tokens || null),
    seconds(request.queue_s), seconds(request.first_token_s), seconds(request.total_s),
    [number(request.engines.length), request.migrations ? `, ${request.migrations} migration${request.migrations === 1 ? "" : "s"}` : "", request.preemptions ? `, ${request.preemptions} preemption${request.preemptions === 1 ? "" : "s"}` : ""].join("")];
  return el("tr", {}, cells.map((cell, index) => el("td", { class: index > 3 ? "number" : null }, cell,
    index === 1 && request.prompt ? el("div", { class: "muted prompt", dir: "auto" }, request.prompt) : null)));
}
