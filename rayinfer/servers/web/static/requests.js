// Recent requests, and one request's life as a waterfall.

import { readJson } from "./api.js";
import { alertLine, button, clockTime, el, number, seconds, setText } from "./elements.js";
import { waterfall } from "./waterfall.js";

const REFRESH_MS = 2000;
const COLUMNS = ["Received", "Request", "Model", "State", "Prompt", "Cached", "Output", "Queue", "First token", "Total", "Engines"];

export function requestsView(main, id) {
  const input = el("input", { type: "text", value: id, "aria-label": "Request id", placeholder: "id, such as chatcmpl-…", spellcheck: "false" });
  const result = el("div", { class: "trace" });
  const search = () => { location.hash = input.value.trim() ? `#requests/${encodeURIComponent(input.value.trim())}` : "#requests"; };
  input.addEventListener("keydown", (key) => { if (key.key === "Enter") search(); });
  main.append(el("h1", {}, "Requests"),
    el("div", { class: "row" }, input, button("Show", search, { class: "primary" }), id ? el("a", { href: "#requests" }, "All recent requests") : null), result);
  if (!id) return recentRequests(result);
  return oneRequest(result, id);
}

// A request's traces, read again until it has finished.
function oneRequest(result, id) {
  let timer = 0, isOver = false, shown = "";
  const refresh = async () => {
    try {
      const { data } = await readJson(`v1/requests/${encodeURIComponent(id)}/trace`);
      const now = JSON.stringify(data);
      if (!isOver && now !== shown) result.replaceChildren(...data.map(waterfall));
      shown = now;
      const isFinished = data.every((trace) => trace.events.at(-1)?.name === "finished");
      if (!isOver && !isFinished) timer = setTimeout(refresh, REFRESH_MS);
    } catch (error) {
      if (!isOver) result.replaceChildren(alertLine(error.message));
    }
  };
  refresh();
  return () => { isOver = true; clearTimeout(timer); };
}

function recentRequests(result) {
  const rows = el("tbody");
  const notice = el("p", { class: "figures" }, "The latest requests of your key. A click leads to a request's life; chat shows a link under each answer.");
  result.append(notice, el("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Recent requests" },
    el("table", {}, el("thead", {}, el("tr", {}, COLUMNS.map((name) => el("th", { scope: "col" }, name)))), rows)));
  let timer = 0, isOver = false, shown = "";
  const refresh = async () => {
    try {
      const { data } = await readJson("v1/requests?limit=100");
      const now = JSON.stringify(data);
      if (!isOver && now !== shown) rows.replaceChildren(...data.map(row));
      shown = now;
      if (!data.length) setText(notice, "No request has come in the last ten minutes.");
    } catch (error) {
      setText(notice, error.message);
      if (error.status && error.status !== 429) return; // switched off, or the key may not
    }
    if (!isOver) timer = setTimeout(refresh, REFRESH_MS);
  };
  refresh();
  return () => { isOver = true; clearTimeout(timer); };
}

function row(request) {
  const reasons = request.finish_reasons.join(", ");
  const cells = [clockTime(request.received_s),
    el("a", { href: `#requests/${encodeURIComponent(request.id)}`, class: "id", dir: "auto", title: request.id }, request.id.slice(0, 80)),
    el("span", { dir: "auto" }, request.model, request.tenant ? el("span", { class: "muted" }, ` · ${request.tenant}`) : null),
    request.state === "finished" ? reasons : request.state,
    number(request.prompt_tokens || null), number(request.prompt_tokens ? request.cached_tokens : null), number(request.output_tokens || null),
    seconds(request.queue_s), seconds(request.first_token_s), seconds(request.total_s),
    [number(request.engines.length), request.migrations ? `, ${request.migrations} migration${request.migrations === 1 ? "" : "s"}` : "", request.preemptions ? `, ${request.preemptions} preemptions` : ""].join("")];
  return el("tr", {}, cells.map((cell, index) => el("td", { class: index > 3 ? "number" : null }, cell,
    index === 1 && request.prompt ? el("div", { class: "muted prompt", dir: "auto" }, request.prompt) : null)));
}
