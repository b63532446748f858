// Engines as strips: their batch and their KV blocks.

import { button, el, number, setText } from "./elements.js";
import { drain } from "./operations.js";
import { afterFrame } from "./slices.js";

const ROWS_A_SLICE = 2;

// Rows of the engines; new ones come some in a frame.
export function engineRows() {
  const element = el("div", { class: "engines" });
  const rows = new Map();
  let latest = {}, mayOperate = false, isAdding = false;
  const add = async () => {
    isAdding = true;
    for (let added = 0, name; (name = Object.keys(latest).find((each) => !rows.has(each))) !== undefined; added += 1) {
      if (added && added % ROWS_A_SLICE === 0) {
        await afterFrame();
        if (!Object.hasOwn(latest, name)) continue;
      }
      const row = engineRow(name);
      rows.set(name, row);
      element.append(row.element);
      row.show(latest[name], mayOperate);
    }
    isAdding = false;
  };
  return {
    element,
    show(engines, isOperator) {
      [latest, mayOperate] = [engines, isOperator];
      for (const [name, row] of rows) {
        if (Object.hasOwn(engines, name)) row.show(engines[name], isOperator);
        else { row.element.remove(); rows.delete(name); }
      }
      if (!isAdding) add();
    },
  };
}

function engineRow(name) {
  const state = el("span"), device = el("span", { class: "muted" }), outcome = el("p", { class: "figures", role: "status" });
  const batch = strip("Batch", ["used", "free"]), blocks = strip("KV blocks", ["used", "cached", "free"]);
  const leave = button("Drain", () => drain(name, outcome), { class: "small" });
  const element = el("div", { class: "engine" },
    el("div", { class: "engine-head" }, el("span", { class: "name", dir: "auto" }, name), state, device, leave),
    batch.element, blocks.element, outcome);
  return {
    element,
    show(stats, mayOperate) {
      setText(state, stats.state);
      state.className = stats.state === "running" ? "good" : stats.state === "dead" ? "bad" : "warn";
      setText(device, [stats.device, stats.kernels && `${stats.kernels} kernels`, stats.weights_version ? `weights ${stats.weights_version}` : ""].filter(Boolean).join(" · "));
      const most = Math.max(stats.max_num_seqs ?? 0, stats.running, 1);
      batch.show([stats.running, most - stats.running], `${number(stats.running)} running${stats.max_num_seqs ? ` of ${number(stats.max_num_seqs)}` : ""}, ${number(stats.waiting)} waiting`);
      const free = stats.kv_blocks_total - stats.kv_blocks_used - stats.kv_blocks_cached;
      blocks.element.hidden = !stats.kv_blocks_total;
      blocks.show([stats.kv_blocks_used, stats.kv_blocks_cached, free],
        `${number(stats.kv_blocks_used)} in use, ${number(stats.kv_blocks_cached)} cached, ${number(free)} free`);
      leave.hidden = !mayOperate;
    },
  };
}

// A bar of parts, with its figures as text: color alone says nothing.
function strip(label, kinds) {
  const parts = kinds.map((kind) => el("span", { class: `part ${kind}` }));
  const text = el("span", { class: "strip-text" });
  return {
    element: el("div", { class: "strip" }, el("span", { class: "muted" }, label), el("span", { class: "bar", "aria-hidden": "true" }, parts), text),
    show(values, shown) {
      const total = values.reduce((sum, value) => sum + value, 0) || 1;
      values.forEach((value, index) => {
        const width = `${(100 * value / total).toFixed(1)}%`;
        if (parts[index].style.width !== width) parts[index].style.width = width;
      });
      setText(text, shown);
    },
  };
}
