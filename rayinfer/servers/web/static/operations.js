// What operators may do; each is confirmed first, and what came of it is shown.

import { readJson } from "./api.js";
import { button, confirmDialog, el, field, setText } from "./elements.js";

async function run(outcome, doing, path, body) {
  outcome.className = "figures";
  setText(outcome, `${doing}…`);
  try {
    const { result } = await readJson(path, body === undefined ? { method: "POST" } : { body });
    setText(outcome, `${doing}: done${summary(result)}`);
  } catch (error) {
    outcome.className = "error";
    setText(outcome, `${doing} failed: ${error.message}`);
  }
}

function summary(result) {
  if (!result) return "";
  if (result.output) return `. ${result.output}`;
  if (result.engines) return `. Engines now: ${result.engines.length}`;
  if (result.source) return `. Weights of ${result.source}, version ${result.weights_version}`;
  return `. ${Object.entries(result).map(([name, engines]) => `${name}: ${engines.length} engines`).join(", ")}`;
}

export async function drain(engine, outcome) {
  const sure = await confirmDialog(`Drain ${engine}?`, "Its streams migrate to other engines, then it is replaced.", "Drain",
    [el("label", { class: "check" }, el("input", { type: "checkbox", name: "shrink" }), " without a replacement")]);
  if (sure) await run(outcome, "Draining", "operations/drain", { engine, shrink: "shrink" in sure });
}

export function modelActions(model) {
  const outcome = el("p", { class: "figures", role: "status" });
  const query = `?model=${encodeURIComponent(model)}`;
  let isPaused = false;
  const pause = button("Pause", async () => {
    const [word, path, text] = isPaused ? ["Resume", "resume", "Its engines go on with what waits."] :
      ["Pause", "pause", "Its engines stop after their present step; requests keep their state and wait, and the service reports that it is not ready."];
    if (await confirmDialog(`${word} ${model}?`, text, word)) await run(outcome, `${word.replace(/e$/, "")}ing`, path + query);
  });
  const scale = button("Scale", async () => {
    const count = el("input", { type: "number", name: "engines", min: 1, max: 1024, placeholder: "as started" });
    const sure = await confirmDialog(`Scale ${model}?`, "Streams of engines that leave migrate to others. Empty: the settings from the start.", "Scale", [field("Engines", count)]);
    if (sure) await run(outcome, "Scaling", "operations/scale", { model, engines: sure.engines === "" ? null : Number(sure.engines) });
  });
  const reload = button("Reload", async () => {
    const source = el("input", { type: "text", name: "source", required: true, maxlength: 4096, placeholder: "folder or repository" });
    const sure = await confirmDialog(`Reload ${model}?`, "Its engines are replaced one by one by engines with these weights; streams migrate.", "Reload", [field("Weights", source)]);
    if (sure) await run(outcome, "Reloading", "operations/reload", { model, source: sure.source });
  });
  const element = el("div", { class: "row actions", hidden: true }, pause, scale, reload);
  return {
    element, outcome,
    show(mayOperate, engines) {
      element.hidden = !mayOperate;
      isPaused = engines.length > 0 && engines.every((engine) => engine.state === "paused");
      setText(pause, isPaused ? "Resume" : "Pause");
    },
  };
}
