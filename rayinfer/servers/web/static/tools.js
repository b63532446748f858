// Calls of tools: shown as they come, and answered by hand.

import { el, field } from "./elements.js";
import { longField } from "./fields.js";

export function addCallDeltas(calls, deltas) {
  for (const { index = 0, id, function: part } of deltas) {
    const call = calls[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
    if (id) call.id = id;
    call.function.name += part?.name ?? "";
    call.function.arguments += part?.arguments ?? "";
  }
}

export function toolCallsElement(calls) {
  return el("ul", { class: "calls", "aria-label": "Calls of tools" }, calls.filter(Boolean).map(({ function: called }) =>
    el("li", {}, el("code", { dir: "auto" }, `${shownName(called)}(${called.arguments.slice(0, 10_000)})`))));
}

export function resultForm(calls, onResults) {
  const inputs = calls.map(() => longField(el("textarea", { rows: 1, placeholder: "what the tool returned" })));
  const form = el("form", { class: "results" }, calls.map((call, index) => [field(`Result of ${shownName(call.function)}`, inputs[index].input), inputs[index].chip]),
    el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, "Send results")));
  form.addEventListener("submit", (submit) => {
    submit.preventDefault();
    onResults(calls.map((call, index) => ({ role: "tool", tool_call_id: call.id, name: call.function.name, content: inputs[index].value })));
  });
  return form;
}

// A model may write a name of any length.
function shownName({ name }) { return name.slice(0, 200); }
