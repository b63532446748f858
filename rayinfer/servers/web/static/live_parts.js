// Parts of a model's panel in the live view: figures as tiles; queue, autoscaling decisions and events as lists.

import { clockTime, el, number, setText } from "./elements.js";
import { sum } from "./live_figures.js";

const SHOWN_MARKS = 8;
const TILES = [["out", "Tokens/s out"], ["in", "Tokens/s in"], ["ttft", "TTFT p50, p95"], ["itl", "Inter-token p50, p95"], ["running", "Running"],
  ["waiting", "Waiting"], ["hits", "Prefix hits"], ["accepted", "Drafts accepted"], ["refused", "Refused"]];

export function tilesPart() {
  const tiles = Object.fromEntries(TILES.map(([key]) => [key, el("dd", {}, "–")]));
  return {
    element: el("dl", { class: "tiles" }, TILES.map(([key, label]) => el("div", {}, el("dt", {}, label), tiles[key]))),
    show({ model, figures }) {
      const engines = Object.values(model.engines);
      setText(tiles.out, number(figures.out, 1));
      setText(tiles.in, number(figures.in, 1));
      setText(tiles.ttft, pair(figures.ttft));
      setText(tiles.itl, pair(figures.itl));
      setText(tiles.running, number(sum(engines.map((each) => each.running))));
      setText(tiles.waiting, number(model.waiting + sum(engines.map((each) => each.waiting))));
      setText(tiles.hits, figures.hits);
      setText(tiles.accepted, figures.accepted);
      setText(tiles.refused, number(sum(Object.values(model.rejected))));
    },
  };
}

// Two durations in one unit.
function pair([low, high]) {
  if (low === null || high === null) return "–";
  return high < 1 ? `${number(low * 1000, low < 0.01 ? 1 : 0)} / ${number(high * 1000, high < 0.01 ? 1 : 0)} ms` : `${number(low, 2)} / ${number(high, 2)} s`;
}

export function listsPart() {
  const queue = el("tbody");
  const emptyQueue = el("p", { class: "figures" }, "No request waits.");
  const queueTable = el("table", { hidden: true }, el("thead", {}, el("tr", {}, ["Priority", "Tenant", "Waiting"].map((head) => el("th", { scope: "col" }, head)))), queue);
  const scaling = markList("Autoscaling", "Autoscaling decisions"), events = markList("Events", "Events");
  let shownQueue = "[]";
  return {
    element: el("div", { class: "columns" }, el("div", {}, el("h3", {}, "Router queue"), emptyQueue, queueTable), scaling.element, events.element),
    show({ model }, marks) {
      const rows = model.queue ?? [], now = JSON.stringify(rows);
      queueTable.hidden = !rows.length;
      emptyQueue.hidden = rows.length > 0;
      const inEngines = sum(Object.values(model.engines).map((each) => each.waiting));
      setText(emptyQueue, inEngines ? `Empty. ${number(inEngines)} ${inEngines > 1 ? "requests wait" : "request waits"} in engines.` : "No request waits.");
      if (now !== shownQueue) queue.replaceChildren(...rows.map(queueRow));
      shownQueue = now;
      scaling.show((model.scaling ?? []).map((each) => ({ time: each.time_s, kind: null, text: `${each.before} to ${each.after} engines: ${each.reason}` })));
      events.show(marks);
    },
  };
}

function queueRow({ priority, tenant, waiting }) {
  return el("tr", {}, el("td", { class: "number" }, number(priority)), el("td", { dir: "auto" }, tenant || "(none)"), el("td", { class: "number" }, number(waiting)));
}

// The latest of some lines, the newest first; not there while there are none.
function markList(title, label) {
  const list = el("ul", { class: "marks", "aria-label": label });
  const element = el("div", { hidden: true }, el("h3", {}, title), list);
  let latest = "";
  return {
    element,
    show(lines) {
      const shown = lines.slice(-SHOWN_MARKS).reverse(), now = JSON.stringify(shown);
      if (now === latest) return;
      latest = now;
      element.hidden = !shown.length;
      list.replaceChildren(...shown.map(({ time, kind, text }) => el("li", { class: kind }, el("time", {}, clockTime(time)), " ", text)));
    },
  };
}
