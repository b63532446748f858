// One model of the live view: figures, charts with marks, queue, engines, and what operators may do.

import { drawLines } from "./charts.js";
import { clockTime, el, number, setText } from "./elements.js";
import { engineRows } from "./engines.js";
import { modelActions } from "./operations.js";

const KEPT = 300;
const WINDOW = 10;
const SHOWN_MARKS = 8;
const SHOWN_NAME = 24; // characters

export function modelPanel(name) {
  const samples = [], marks = [], tiles = {};
  const tile = (key, label) => {
    tiles[key] = el("dd", {}, "–");
    return el("div", {}, el("dt", {}, label), tiles[key]);
  };
  const state = el("span", { class: "good" }, "");
  const rates = el("canvas", { class: "chart", role: "img", "aria-label": `Tokens per second of ${name} over five minutes` });
  const latencies = el("canvas", { class: "chart", role: "img", "aria-label": `Latencies of ${name} over five minutes` });
  const queue = el("tbody");
  const emptyQueue = el("p", { class: "figures" }, "No request waits.");
  const queueTable = el("table", { hidden: true }, el("thead", {}, el("tr", {}, ["Priority", "Tenant", "Waiting"].map((head) => el("th", { scope: "col" }, head)))), queue);
  const engines = engineRows();
  const actions = modelActions(name);
  const log = el("ul", { class: "marks", "aria-label": "Events" });
  const scaling = el("ul", { class: "marks", "aria-label": "Autoscaling decisions" });
  const scalingPart = el("div", { hidden: true }, el("h3", {}, "Autoscaling"), scaling);
  const eventsPart = el("div", { hidden: true }, el("h3", {}, "Events"), log);
  const element = el("section", { class: "card", "aria-label": name },
    el("div", { class: "card-head" }, el("h2", {}, el("span", { dir: "auto" }, name), " ", state), actions.element),
    actions.outcome,
    el("dl", { class: "tiles" }, tile("out", "Tokens/s out"), tile("in", "Tokens/s in"), tile("ttft", "TTFT p50, p95"),
      tile("itl", "Inter-token p50, p95"), tile("running", "Running"), tile("waiting", "Waiting"),
      tile("hits", "Prefix hits"), tile("accepted", "Drafts accepted"), tile("refused", "Refused")),
    el("div", { class: "charts" },
      el("figure", {}, el("figcaption", {}, key("line1", "out"), key("line2", "in"), " tokens/s"), rates),
      el("figure", {}, el("figcaption", {}, key("line1", "first token p95"), key("line2", "inter-token p95"), " ms"), latencies)),
    el("h3", {}, "Engines"), engines.element,
    el("div", { class: "columns" }, el("div", {}, el("h3", {}, "Queue"), emptyQueue, queueTable), scalingPart, eventsPart));

  const mark = (time, kind, text) => {
    marks.push({ time, kind });
    if (marks.length > 50) marks.shift();
    marks.sort((a, b) => (a.kind === "bad") - (b.kind === "bad")); // a death is drawn over what it caused
    log.prepend(el("li", { class: kind }, el("time", {}, clockTime(time)), " ", text));
    while (log.children.length > SHOWN_MARKS) log.lastElementChild.remove();
    eventsPart.hidden = false;
  };
  const noticeChanges = (time, before, now) => {
    for (const engine of Object.keys(before.engines)) if (!(engine in now.engines)) mark(time, "bad", `engine ${short(engine)} is gone`);
    for (const [engine, stats] of Object.entries(now.engines)) {
      const known = before.engines[engine];
      if (!known) mark(time, "good", `engine ${short(engine)} joined`);
      else if (known.state !== stats.state) mark(time, stats.state === "dead" ? "bad" : "warn", `engine ${short(engine)} is ${stats.state}`);
      else if (stats.preemptions > known.preemptions) mark(time, "warn", `engine ${short(engine)} preempted ${stats.preemptions - known.preemptions}`);
    }
    const migrated = now.migrations - before.migrations;
    if (migrated > 0) mark(time, "warn", `${migrated} stream${migrated === 1 ? "" : "s"} migrated`);
    if (before.ready !== now.ready) mark(time, now.ready ? "good" : "bad", now.ready ? "ready" : `not ready: ${now.reason ?? ""}`);
    const known = before.scaling?.length ? before.scaling.at(-1).time_s : 0;
    for (const each of now.scaling ?? []) if (each.time_s > known) mark(time, "warn", `${each.before} to ${each.after} engines`);
  };
  const showQueue = (rows) => {
    queueTable.hidden = !rows.length;
    emptyQueue.hidden = rows.length > 0;
    queue.replaceChildren(...rows.map((row) => el("tr", {}, el("td", { class: "number" }, number(row.priority)),
      el("td", { dir: "auto" }, row.tenant || "(none)"), el("td", { class: "number" }, number(row.waiting)))));
  };
  const showScaling = (decisions) => {
    scalingPart.hidden = !decisions.length;
    scaling.replaceChildren(...decisions.slice(-SHOWN_MARKS).reverse().map((each) =>
      el("li", {}, el("time", {}, clockTime(each.time_s)), ` ${each.before} to ${each.after} engines: ${each.reason}`)));
  };
  return {
    element,
    add(time, model, mayOperate) {
      const last = samples.at(-1);
      if (last && time <= last.time) return;
      if (last) noticeChanges(time, last.model, model);
      const from = samples[Math.max(0, samples.length - WINDOW)] ?? { time, model };
      const span = time - from.time;
      // A router that has started again counts from zero.
      const rate = (name_) => span > 0 ? Math.max(0, model[name_] - from.model[name_]) / span : null;
      const ttft = percentiles(model.first_token, from.model.first_token), itl = percentiles(model.inter_token, from.model.inter_token);
      const point = { time, out: rate("generation_tokens"), in: rate("prompt_tokens"), ttft: ttft[1], itl: itl[1] };
      samples.push({ time, model, point });
      if (samples.length > KEPT) samples.shift();
      const engineList = Object.values(model.engines), prompts = model.prompt_tokens - from.model.prompt_tokens;
      setText(state, model.ready ? "ready" : `not ready${model.reason ? `: ${model.reason}` : ""}`);
      state.className = model.ready ? "good" : "warn";
      setText(tiles.out, number(point.out, 1));
      setText(tiles.in, number(point.in, 1));
      setText(tiles.ttft, pair(ttft));
      setText(tiles.itl, pair(itl));
      setText(tiles.running, number(sum(engineList.map((each) => each.running))));
      setText(tiles.waiting, number(model.waiting + sum(engineList.map((each) => each.waiting))));
      setText(tiles.hits, prompts > 0 ? `${number(100 * (model.cached_prompt_tokens - from.model.cached_prompt_tokens) / prompts)} %` : "–");
      setText(tiles.accepted, acceptedShare(model.engines, from.model.engines));
      setText(tiles.refused, number(sum(Object.values(model.rejected))));
      const points = samples.map((each) => each.point);
      drawLines(rates, points, ["out", "in"], marks, { span: KEPT, digits: 0 });
      drawLines(latencies, points, ["ttft", "itl"], marks, { span: KEPT, factor: 1000, digits: 0 });
      engines.show(model.engines, mayOperate);
      showQueue(model.queue ?? []);
      showScaling(model.scaling ?? []);
      actions.show(mayOperate, engineList);
    },
  };
}

// The end of a long name, where names of engines differ, from a hyphen on.
function short(engine) { return engine.length <= SHOWN_NAME ? engine : engine.slice(-SHOWN_NAME).replace(/^[^-]*-|^/, "…"); }

// Two durations in one unit.
function pair([low, high]) {
  if (low === null || high === null) return "–";
  return high < 1 ? `${number(low * 1000, low < 0.01 ? 1 : 0)} / ${number(high * 1000, high < 0.01 ? 1 : 0)} ms` : `${number(low, 2)} / ${number(high, 2)} s`;
}

function key(line, text) { return el("span", { class: `key-${line}` }, text); }

function sum(values) { return values.reduce((total, value) => total + value, 0); }

// Estimates of the 50th and the 95th percentile of what came between two samples, from buckets.
function percentiles(now, before) {
  const counts = now.counts.map((count, index) => Math.max(0, count - (before.counts[index] ?? 0)));
  const total = sum(counts);
  if (total <= 0) return [null, null];
  return [0.5, 0.95].map((share) => {
    let below = 0;
    for (let index = 0; index < counts.length; index += 1) {
      if (below + counts[index] >= share * total) return interpolate(now.bounds, counts, index, share * total - below);
      below += counts[index];
    }
    return null;
  });
}

function interpolate(bounds, counts, index, rest) {
  const low = index === 0 ? 0 : bounds[index - 1];
  if (index >= bounds.length) return low;
  return low + (bounds[index] - low) * (counts[index] ? rest / counts[index] : 1);
}

// Of draft tokens, how many were accepted by the engines that are there still.
function acceptedShare(now, before) {
  let drafted = 0, accepted = 0;
  for (const [engine, stats] of Object.entries(now)) {
    const known = before[engine] ?? {};
    drafted += Math.max(0, (stats.draft_tokens ?? 0) - (known.draft_tokens ?? 0));
    accepted += Math.max(0, (stats.accepted_draft_tokens ?? 0) - (known.accepted_draft_tokens ?? 0));
  }
  return drafted ? `${number(100 * accepted / drafted)} %` : "–";
}
