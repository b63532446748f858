// One model of the live view: figures, charts with marks, queue, engines, and what operators may do.

import { lineChart } from "./charts.js";
import { el, setText } from "./elements.js";
import { engineRows } from "./engines.js";
import { figuresBetween } from "./live_figures.js";
import { eventsOf } from "./live_events.js";
import { listsPart, tilesPart } from "./live_parts.js";
import { modelActions } from "./operations.js";
import { afterFrame } from "./slices.js";

const KEPT = 300;
const WINDOW = 10;

// The parts come one after the other, a frame for each; `onWhole` is called once all are there.
export function modelPanel(name, onWhole) {
  const samples = [], marks = [], parts = [];
  const element = el("section", { class: "card", "aria-label": name });
  let isWhole = false;
  const chart = (label, keys, unit, names, options) => () => {
    const { canvas, show } = lineChart(`${label} of ${name} over five minutes`, names, { span: KEPT, digits: 0, ...options });
    const figure = el("figure", {}, el("figcaption", {}, keys.map((each, index) => el("span", { class: `key-line${index + 1}` }, each)), ` ${unit}`), canvas);
    return { element: figure, show: () => show(samples.map((each) => each.point), marks) };
  };
  const charts = el("div", { class: "charts" });
  const steps = [
    [element, () => headPart(name)], [element, tilesPart],
    [charts, chart("Tokens per second", ["out", "in"], "tokens/s", ["out", "in"])],
    [charts, chart("Latencies", ["first token p95", "inter-token p95"], "log scale", ["ttft", "itl"], { factor: 1000, isLogarithmic: true })],
    [element, enginesPart], [element, listsPart],
  ];
  const build = async () => {
    for (const [parent, make] of steps) {
      const part = make();
      if (parent === charts && !charts.isConnected) element.append(charts);
      parent.append(part.element);
      part.show(samples.at(-1), marks);
      parts.push(part);
      await afterFrame();
    }
    isWhole = true;
    onWhole();
  };
  return {
    element,
    isWhole: () => isWhole,
    add(time, model, mayOperate) {
      const last = samples.at(-1);
      if (last && time <= last.time) return;
      if (last) marks.push(...eventsOf(time, last.model, model));
      marks.splice(0, marks.length - 50);
      const figures = figuresBetween(samples[Math.max(0, samples.length - WINDOW)] ?? { time, model }, { time, model });
      samples.push({ time, model, mayOperate, figures, point: { time, out: figures.out, in: figures.in, ttft: figures.ttft[1], itl: figures.itl[1] } });
      if (samples.length > KEPT) samples.shift();
      if (!last) build();
      for (const part of parts) part.show(samples.at(-1), marks);
    },
  };
}

function headPart(name) {
  const state = el("span", { class: "good" });
  const actions = modelActions(name);
  return {
    element: el("div", {}, el("div", { class: "card-head" }, el("h2", {}, el("span", { dir: "auto" }, name), " ", state), actions.element), actions.outcome),
    show({ model, mayOperate }) {
      setText(state, model.ready ? "ready" : `not ready${model.reason ? `: ${model.reason}` : ""}`);
      state.className = model.ready ? "good" : "warn";
      actions.show(mayOperate, Object.values(model.engines));
    },
  };
}

function enginesPart() {
  const engines = engineRows();
  return {
    element: el("div", {}, el("h3", {}, "Engines"), engines.element),
    show({ model, mayOperate }) { engines.show(model.engines, mayOperate); },
  };
}
