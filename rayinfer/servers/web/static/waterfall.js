// A trace as bars over time: queue, prefill chunks, decoding, and what interrupted them.

import { el, number, seconds } from "./elements.js";
import { inSlices } from "./slices.js";

const LANES_SHOWN = 32;
const OPEN_EVENTS = 40;
const EVENTS_A_SLICE = 40;
const DETAILS_SHOWN = 2000; // characters
const PHASES_SHOWN = 200; // of a lane
const LANES_A_SLICE = 4;
const WHY = { only: "the only engine", prefix: "it has the prefix cached", load: "it has the least to do" };

// A card of a trace; its table of events is open where it is short, or as `isOpen` says.
export function waterfall(trace, isOpen = trace.events.length <= OPEN_EVENTS) {
  const start = trace.events[0]?.time_s ?? 0;
  const end = trace.events.at(-1)?.time_s ?? start;
  const span = Math.max(end - start, 1e-6);
  const lanes = lanesOf(trace.events, end), shownLanes = el("div", { class: "waterfall" });
  inSlices(lanes.slice(0, LANES_SHOWN), LANES_A_SLICE, (lane) => shownLanes.append(laneElement(lane, start, span)));
  return el("section", { class: "card" }, el("h2", { dir: "auto" }, `${trace.id.slice(0, 200)} · ${trace.model}`),
    el("p", { class: "figures" }, `${trace.events.length} events in ${seconds(span)}` +
      (trace.num_events_dropped ? `; ${trace.num_events_dropped} more were not kept` : "")),
    el("p", { class: "legend" }, [["queue", "waits"], ["prefill", "prefill"], ["decode", "decoding"], ["stall", "preempted or migrating"]].map(([kind, text]) =>
      el("span", {}, el("span", { class: `swatch ${kind}` }), ` ${text} `))),
    shownLanes,
    lanes.length > LANES_SHOWN ? el("p", { class: "muted" }, `${number(lanes.length - LANES_SHOWN)} more choices are in the table only.`) : null,
    eventTable(trace.events, start, isOpen));
}

function laneElement({ label, bars: all, next }, start, span) {
  const bars = all.length <= PHASES_SHOWN ? all : all.slice(0, PHASES_SHOWN);
  if (bars !== all) bars.push({ kind: "decode", text: `${number(all.length - PHASES_SHOWN)} more phases`, from: bars.at(-1).to, to: all.at(-1).to });
  const track = el("div", { class: "track" }, bars.map((bar) => {
    const part = el("span", { class: `bar-part ${bar.kind}`, title: `${bar.text}: ${seconds(bar.to - bar.from)}`, role: "img", "aria-label": `${bar.text}: ${seconds(bar.to - bar.from)}` });
    part.style.left = `min(${100 * (bar.from - start) / span}%, 100% - 2px)`; // short ones at the end stay visible
    part.style.width = `${100 * Math.max(0, bar.to - bar.from) / span}%`;
    return part;
  }));
  return el("div", { class: "lane" }, el("span", { class: "muted" }, label), track,
    el("ol", { class: "phases" }, bars.map((bar) => el("li", {}, el("span", { class: `swatch ${bar.kind}` }), el("span", { dir: "auto" }, ` ${bar.text} `), el("span", { class: "muted" }, seconds(bar.to - bar.from)))),
    next && el("li", {}, el("span", { class: `swatch ${next[0]}` }), el("span", { dir: "auto" }, ` now: ${next[1]}`))));
}

// One lane a choice; each event ends a phase and begins the next.
function lanesOf(events, end) {
  const received = events.find((event) => event.name === "received");
  const lanes = new Map();
  const laneOf = (event) => {
    const { prompt = 0, choice = 0 } = event.details;
    const key = `${prompt}/${choice}`;
    if (!lanes.has(key)) lanes.set(key, { label: `Prompt ${prompt + 1}, choice ${choice + 1}`, bars: [], from: received?.time_s ?? event.time_s, next: ["queue", "waits in the router"] });
    return lanes.get(key);
  };
  const lanesOfPrompt = (event) => [...lanes.entries()].filter(([key]) => key.startsWith(`${event.details.prompt ?? 0}/`)).map(([, lane]) => lane);
  for (const event of events) {
    if (event.name === "received") continue;
    for (const lane of event.name === "migrated" ? lanesOfPrompt(event) : [laneOf(event)]) take(lane, event);
  }
  for (const lane of lanes.values()) if (lane.next && end > lane.from) close(lane, end);
  if (events.at(-1)?.name === "finished") for (const lane of lanes.values()) lane.next = null;
  return [...lanes.values()];
}

function close(lane, time) {
  lane.bars.push({ kind: lane.next[0], text: lane.next[1], from: lane.from, to: time });
  lane.from = time;
}

function take(lane, { name, time_s: time, details }) {
  if (name === "speculated") return; // counts of the whole answer, in the table
  if (name === "prefill_chunk") {
    lane.bars.push({ kind: "prefill", text: `prefill of tokens ${details.start} to ${details.end}`, from: lane.from, to: time });
    lane.from = time;
    lane.next = lane.hasTokens ? ["decode", "decodes"] : ["prefill", "computes the first token"];
    return;
  }
  // A lost engine's own events are lost with it.
  if (name === "migrated" && details.output_tokens && lane.isSent) lane.next = ["decode", `ran on ${details.engine}, ${number(details.output_tokens)} tokens by then`];
  if (lane.next) close(lane, time);
  lane.isSent = name === "dispatched";
  lane.hasTokens ||= name === "first_token";
  lane.next = {
    dispatched: ["queue", `sent to ${details.engine} (${WHY[details.why] ?? details.why})`],
    queued: ["queue", "waits in the engine"],
    loaded: ["queue", `${number(details.tokens)} tokens loaded from the machine's KV store`],
    admitted: ["prefill", `prefill, ${details.cached_tokens ?? 0} tokens cached`],
    first_token: ["decode", "decodes"],
    preempted: ["stall", "preempted"],
    swapped_out: ["stall", "swapped out"],
    swapped_in: ["stall", "swapped in"],
    resumed: ["decode", "goes on"],
    migrated: ["stall", `migrates from ${details.engine} (${details.reason})`],
    finished: null,
  }[name] ?? null;
}

// The rows are made once they are to be seen.
function eventTable(events, start, isOpen) {
  const rows = el("tbody");
  const table = el("details", { open: isOpen }, el("summary", {}, `Events (${number(events.length)})`),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events of the request" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Event", "After", "Details"].map((head) => el("th", { scope: "col" }, head)))), rows)));
  const show = () => {
    if (table.open && !rows.children.length) inSlices(events, EVENTS_A_SLICE, (event) => rows.append(eventRow(event, start)));
  };
  table.addEventListener("toggle", show);
  if (isOpen) show();
  return table;
}

function eventRow({ name, time_s: time, details }, start) {
  const shown = Object.entries(details).map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  return el("tr", {}, el("td", {}, name), el("td", { class: "number" }, seconds(time - start)), el("td", { class: "details", dir: "auto" }, shown.slice(0, DETAILS_SHOWN)));
}
