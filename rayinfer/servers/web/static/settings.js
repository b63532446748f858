// Model choice and sampling settings; what is left empty is the model's default, which the fields show.

import { generationModels } from "./api.js";
import { el, field } from "./elements.js";

const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.05 }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
];

export function settings() {
  const model = el("select", { "aria-label": "Model" });
  const inputs = Object.fromEntries(NUMBERS.map(([name, , bounds]) =>
    [name, el("input", { type: "number", name, placeholder: "default", ...bounds })]));
  let models = [];
  const showDefaults = () => {
    const chosen = models.find((each) => each.id === model.value);
    for (const [name, input] of Object.entries(inputs)) {
      input.placeholder = chosen?.default_sampling_params?.[name] ?? "default";
    }
  };
  model.addEventListener("change", showDefaults);
  const element = el("div", { class: "settings" }, field("Model", model),
    NUMBERS.map(([name, label]) => field(label, inputs[name])));
  return {
    element,
    async load() {
      models = await generationModels();
      const before = model.value;
      model.replaceChildren(...models.map((each) => el("option", { value: each.id }, each.id)));
      if (models.some((each) => each.id === before)) model.value = before;
      showDefaults();
      return models.length;
    },
    values() {
      const values = { model: model.value };
      for (const [name, input] of Object.entries(inputs)) if (input.value !== "") values[name] = Number(input.value);
      return values;
    },
  };
}
