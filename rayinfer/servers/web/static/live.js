// The service at work: one sample a second, rates and percentiles over the last ten seconds.

import { call, events } from "./api.js";
import { el, number, seconds } from "./elements.js";

const KEPT = 300;
const WINDOW = 10;

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
      panels.get(name).add(sample.time_s, model);
    }
    for (const [name, panel] of panels) {
      if (!(name in sample.models)) { panel.element.remove(); panels.delete(name); }
    }
    notice.textContent = panels.size ? `${sample.num_routers} router${sample.num_routers === 1 ? "" : "s"} · ` +
      `sample of ${new Date(sample.time_s * 1000).toLocaleTimeString()}` : "No model is loaded yet.";
  };
  (async () => {
    while (!abort.signal.aborted) {
      let pause = 0;
      try {
        for await (const sample of events(await call("live", { signal: abort.signal }))) take(sample);
      } catch (error) {
        if (abort.signal.aborted) return;
        notice.textContent = error.status ? error.message : "The service is unreachable; connecting again…";
        pause = 1000;
      }
      if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
    }
  })();
  return () => abort.abort();
}

function modelPanel(name) {
  const samples = [];
  const marks = [];
  const tiles = {};
  const tile = (key, label) => {
    tiles[key] = el("dd", {}, "–");
    return el("div", {}, el("dt", {}, label), tiles[key]);
  };
  const state = el("span", { class: "good" }, "");
  const chart = el("canvas", { class: "chart", width: 600, height: 120, role: "img", "aria-label": `Generated tokens per second of ${name}` });
  const engines = el("div", { class: "engines" });
  const log = el("ul", { class: "marks", "aria-label": "Events" });
  const element = el("section", { class: "card", "aria-label": name },
    el("h2", {}, el("span", { dir: "auto" }, name), " ", state),
    el("dl", { class: "tiles" }, tile("out", "Tokens/s out"), tile("in", "Tokens/s in"), tile("ttft", "TTFT p50 / p95"),
      tile("itl", "Inter-token p50 / p95"), tile("running", "Running"), tile("waiting", "Waiting"),
      tile("hits", "Prefix hits"), tile("errors", "Refused")),
    chart, engines, log);

  const mark = (time, text) => {
    marks.push({ time, text });
    if (marks.length > 50) marks.shift();
    log.prepend(el("li", {}, el("time", {}, new Date(time * 1000).toLocaleTimeString()), ` ${text}`));
    while (log.children.length > 8) log.lastElementChild.remove();
  };
  const noticeChanges = (time, before, now) => {
    for (const engine of Object.keys(before.engines)) if (!(engine in now.engines)) mark(time, `engine ${engine} is gone`);
    for (const [engine, stats] of Object.entries(now.engines)) {
      if (!(engine in before.engines)) mark(time, `engine ${engine} joined`);
      else if (before.engines[engine].state !== stats.state) mark(time, `engine ${engine} is ${stats.state}`);
      else if (stats.preemptions > before.engines[engine].preemptions) mark(time, `engine ${engine} preempted ${stats.preemptions - before.engines[engine].preemptions}`);
    }
    if (now.migrations > before.migrations) mark(time, `${now.migrations - before.migrations} streams migrated`);
    if (before.ready !== now.ready) mark(time, now.ready ? "ready" : `not ready: ${now.reason ?? ""}`);
  };
  return {
    element,
    add(time, model) {
      const last = samples.at(-1);
      if (last && time <= last.time) return;
      if (last) noticeChanges(time, last.model, model);
      samples.push({ time, model });
      if (samples.length > KEPT) samples.shift();
      const from = samples[Math.max(0, samples.length - 1 - WINDOW)];
      const span = time - from.time;
      const rate = (key) => span > 0 ? Math.max(0, model[key] - from.model[key]) / span : null;
      const between = (key) => percentiles(model[key], from.model[key]);
      const [engineList, hits] = [Object.values(model.engines), model.prompt_tokens - from.model.prompt_tokens];
      state.textContent = model.ready ? "ready" : `not ready${model.reason ? `: ${model.reason}` : ""}`;
      state.className = model.ready ? "good" : "warn";
      tiles.out.textContent = number(rate("generation_tokens"), 1);
      tiles.in.textContent = number(rate("prompt_tokens"), 1);
      tiles.ttft.textContent = between("first_token").map(seconds).join(" / ");
      tiles.itl.textContent = between("inter_token").map(seconds).join(" / ");
      tiles.running.textContent = number(engineList.reduce((sum, each) => sum + each.running, 0));
      tiles.waiting.textContent = number(model.waiting + engineList.reduce((sum, each) => sum + each.waiting, 0));
      tiles.hits.textContent = hits > 0 ? `${number(100 * (model.cached_prompt_tokens - from.model.cached_prompt_tokens) / hits)} %` : "–";
      tiles.errors.textContent = number(Object.values(model.rejected).reduce((sum, each) => sum + each, 0));
      drawChart(chart, samples, marks);
      drawEngines(engines, model.engines);
    },
  };
}

// Upper bounds of the buckets that hold the 50th and the 95th percentile of what came between two samples.
function percentiles(now, before) {
  const counts = now.counts.map((count, index) => count - (before.counts[index] ?? 0));
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total <= 0) return [null, null];
  return [0.5, 0.95].map((share) => {
    let sum = 0;
    for (let index = 0; index < counts.length; index += 1) {
      sum += counts[index];
      if (sum >= share * total) return interpolate(now.bounds, counts, index, share * total - (sum - counts[index]));
    }
    return null;
  });
}

function interpolate(bounds, counts, index, rest) {
  const low = index === 0 ? 0 : bounds[index - 1];
  if (index >= bounds.length) return low;
  return low + (bounds[index] - low) * (counts[index] ? rest / counts[index] : 1);
}

function drawChart(canvas, samples, marks) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth || 600, canvas.clientHeight || 120];
  canvas.width = width * scale;
  canvas.height = height * scale;
  const paint = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  paint.scale(scale, scale);
  paint.font = "11px system-ui, sans-serif";
  const points = samples.slice(1).map(({ time, model }, index) => ({
    time, value: Math.max(0, model.generation_tokens - samples[index].model.generation_tokens) / (time - samples[index].time) }));
  const top = Math.max(10, ...points.map((point) => point.value)) * 1.1;
  const end = samples.at(-1).time;
  const x = (time) => width - (end - time) / KEPT * (width - 48) - 4;
  const y = (value) => height - 16 - value / top * (height - 28);
  paint.strokeStyle = style.getPropertyValue("--line");
  paint.fillStyle = style.getPropertyValue("--muted");
  for (const value of [0, top / 2.2, top / 1.1]) {
    paint.beginPath(); paint.moveTo(40, y(value)); paint.lineTo(width - 4, y(value)); paint.stroke();
    paint.fillText(number(value), 4, y(value) + 4);
  }
  paint.fillText("tokens/s, last 5 minutes", 44, height - 3);
  paint.strokeStyle = style.getPropertyValue("--warn");
  for (const { time } of marks) {
    if (end - time > KEPT) continue;
    paint.beginPath(); paint.moveTo(x(time), 8); paint.lineTo(x(time), height - 16); paint.stroke();
  }
  paint.strokeStyle = style.getPropertyValue("--accent");
  paint.lineWidth = 2;
  paint.beginPath();
  points.forEach((point, index) => paint[index ? "lineTo" : "moveTo"](x(point.time), y(point.value)));
  paint.stroke();
}

function drawEngines(container, engines) {
  container.replaceChildren(...Object.entries(engines).map(([name, stats]) => {
    const share = stats.kv_blocks_total ? stats.kv_blocks_used / stats.kv_blocks_total : 0;
    return el("div", { class: "engine" },
      el("span", { class: "name", dir: "auto" }, name), el("span", { class: stats.state === "running" ? "good" : "warn" }, stats.state),
      el("span", {}, `${number(stats.running)} running, ${number(stats.waiting)} waiting`),
      el("meter", { min: 0, max: 1, value: share, "aria-label": `KV blocks in use of ${name}` }),
      el("span", {}, stats.kv_blocks_total ? `${number(stats.kv_blocks_used)} of ${number(stats.kv_blocks_total)} KV blocks` : "no KV blocks"));
  }));
}
