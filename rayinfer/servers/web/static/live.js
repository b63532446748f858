// The service at work: one sample a second, rates and percentiles over the last ten seconds.

import { clockTime, el, setText } from "./elements.js";
import { modelPanel } from "./live_model.js";
import { followLive } from "./live_source.js";

export function liveView(view) {
  const notice = el("p", { class: "figures", role: "status" }, "Connecting…");
  const body = el("div", { class: "models" });
  view.append(el("h1", {}, "Live"), notice, body);
  const abort = new AbortController();
  const panels = new Map();
  let latest = null;

  const say = () => {
    if (!latest || [...panels.values()].some((panel) => !panel.isWhole())) return;
    const routers = `${latest.num_routers} router${latest.num_routers === 1 ? "" : "s"}`;
    setText(notice, panels.size ? `Live from ${routers}, a sample a second` : "No model is loaded yet.");
  };
  const take = (sample) => {
    latest = sample;
    for (const [name, model] of Object.entries(sample.models)) {
      if (!panels.has(name)) {
        panels.set(name, modelPanel(name, say));
        body.append(panels.get(name).element);
      }
      panels.get(name).add(sample.time_s, model, sample.may_operate);
    }
    for (const [name, panel] of panels) {
      if (!(name in sample.models)) { panel.element.remove(); panels.delete(name); }
    }
    say();
  };
  const fail = (trouble) => {
    setText(notice, latest && panels.size ? `${trouble} What is shown is of ${clockTime(latest.time_s)}.` : trouble);
  };
  followLive(take, fail, abort.signal);
  return { leave: () => abort.abort() };
}
