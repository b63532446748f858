// One request's life: its trace as a waterfall.

import { readJson } from "./api.js";
import { el, seconds } from "./elements.js";

export function requestsView(main, id) {
  const input = el("input", { type: "text", value: id, "aria-label": "Request id", placeholder: "id of an answer, such as chatcmpl-…", spellcheck: "false" });
  const result = el("div", { class: "trace" });
  const search = () => { if (input.value.trim()) location.hash = `#requests/${encodeURIComponent(input.value.trim())}`; };
  input.addEventListener("keydown", (key) => { if (key.key === "Enter") search(); });
  main.append(el("h1", {}, "Requests"),
    el("div", { class: "row" }, input, el("button", { type: "button", class: "primary", onclick: search }, "Show")), result);
  if (!id) { result.append(el("p", { class: "figures" }, "Every answer's id leads to its trace; chat shows a link under each answer.")); return; }
  readJson(`v1/requests/${encodeURIComponent(id)}/trace`)
    .then(({ data }) => result.append(...data.map(waterfall)))
    .catch((error) => result.append(el("p", { class: "error", role: "alert" }, error.message)));
}

function waterfall(trace) {
  const start = trace.events[0]?.time_s ?? 0;
  const end = trace.events.at(-1)?.time_s ?? start;
  const span = Math.max(end - start, 1e-6);
  return el("section", { class: "card" }, el("h2", { dir: "auto" }, `${trace.id} · ${trace.model}`),
    el("p", { class: "figures" }, `${trace.events.length} events in ${seconds(span)}` +
      (trace.num_events_dropped ? `; ${trace.num_events_dropped} more were not kept` : "")),
    el("table", {}, el("thead", {}, el("tr", {}, ["Event", "After", "Timeline", "Details"].map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, trace.events.map((event, index) => {
        const next = trace.events[index + 1]?.time_s ?? event.time_s;
        const meter = el("progress", { max: 1, value: (event.time_s - start) / span, "aria-hidden": "true" });
        return el("tr", {}, el("td", {}, event.name), el("td", { class: "number" }, seconds(event.time_s - start)),
          el("td", { title: `${seconds(next - event.time_s)} until the next` }, meter),
          el("td", { class: "details", dir: "auto" }, Object.entries(event.details).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")));
      }))));
}
