// Model choice and sampling settings; what is left empty is the model's default, which the fields show.

import { modelsThat } from "./api.js";
import { el, field, setText } from "./elements.js";
import { afterFrame } from "./slices.js";

const RETRY_MS = 2000;
const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.05 }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { step: 1 }],
];
const MORE_NUMBERS = [
  ["top_k", "Top k", { min: -1, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01 }],
  ["repetition_penalty", "Repetition penalty", { min: 0, step: 0.05 }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1 }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }],
];
// What a request has where neither it nor the model's folder says anything.
const NEUTRAL = { temperature: 1, top_p: 1, top_k: "off", min_p: 0, repetition_penalty: 1, frequency_penalty: 0, presence_penalty: 0, seed: "random", max_tokens: "to the limit" };

// Fields for models that do one of the tasks; `own` are defaults of the view, sent where a field is empty.
// They come some in a frame: the browser makes a number's field from many parts.
export function settings({ tasks = ["generate"], own = {}, onModel = () => {} } = {}) {
  const model = el("select", { "aria-label": "Model" });
  const inputs = {};
  const stop = el("input", { type: "text", name: "stop", placeholder: "none", maxlength: 1000 });
  let models = [], numLoads = 0;
  const chosen = () => models.find((each) => each.id === model.value);
  const showDefaults = () => {
    const defaults = chosen()?.default_sampling_params ?? {};
    for (const [name, input] of Object.entries(inputs)) input.placeholder = String(own[name] ?? defaults[name] ?? NEUTRAL[name]);
    onModel(chosen());
  };
  const list = async () => {
    models = await modelsThat(...tasks);
    const before = model.value;
    model.replaceChildren(...models.map((each) => el("option", { value: each.id }, each.id)));
    if (models.some((each) => each.id === before)) model.value = before;
    showDefaults();
  };
  model.addEventListener("change", showDefaults);
  const element = el("div", { class: "settings" }, field("Model", model)), more = el("div", { class: "settings" });
  const addNumbers = (parent, numbers) => {
    for (const [name, label, bounds] of numbers) {
      inputs[name] = el("input", { type: "number", name, placeholder: "default", ...bounds });
      parent.append(field(label, inputs[name]));
    }
    showDefaults();
  };
  const build = async () => {
    await afterFrame();
    addNumbers(element, NUMBERS);
    await afterFrame();
    addNumbers(more, MORE_NUMBERS);
    more.append(field("Stop text", stop));
  };
  build();
  return {
    element, more,
    // Lists the models, again and again while there are none: a service that starts has none yet.
    async load(notice) {
      const load = numLoads += 1;
      do {
        let text = "";
        try {
          await list();
          if (!models.length) text = "No model for this view is served yet.";
        } catch (error) {
          setText(notice, error.message);
          if (error.status < 500) return; // the key may not
          text = error.message;
        }
        setText(notice, text);
        if (!text) return;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      } while (element.isConnected && load === numLoads);
    },
    chosen,
    takesImages: () => Boolean(chosen()?.input_modalities?.includes("image")), // beside text
    isImageModel: () => Boolean(chosen()?.tasks?.includes("classify_images")),
    values() {
      const values = { model: model.value, ...own };
      for (const [name, input] of Object.entries(inputs)) if (input.value !== "") values[name] = Number(input.value);
      if (stop.value) values.stop = stop.value;
      return values;
    },
  };
}
