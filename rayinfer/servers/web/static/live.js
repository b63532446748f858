// The service at work: one sample a second, rates and percentiles over the last ten seconds.

import { el, setText } from "./elements.js";
import { modelPanel } from "./live_model.js";
import { followLive } from "./live_source.js";

export function liveView(main) {
  const notice = el("p", { class: "figures", role: "status" }, "Connecting…");
  const body = el("div", { class: "models" });
  main.append(el("h1", {}, "Live"), notice, body);
  const abort = new AbortController();
  const panels = new Map();

  const take = (sample) => {
    for (const [name, model] of Object.entries(sample.models)) {
      if (!panels.has(name)) {
        panels.set(name, modelPanel(name));
        body.append(panels.get(name).element);
      }
      panels.get(name).add(sample.time_s, model, sample.may_operate);
    }
    for (const [name, panel] of panels) {
      if (!(name in sample.models)) { panel.element.remove(); panels.delete(name); }
    }
    setText(notice, panels.size ? `Live from ${sample.num_routers} router${sample.num_routers === 1 ? "" : "s"}, a sample a second` : "No model is loaded yet.");
  };
  followLive(take, (trouble) => setText(notice, trouble), abort.signal);
  return () => abort.abort();
}
