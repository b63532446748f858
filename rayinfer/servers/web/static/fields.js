// Fields that take a megabyte: the browser lays out all that a field holds, so a long text is kept beside it and sent whole.

import { button, el, number } from "./elements.js";

const FIELD_CHARS = 20_000; // that a field shows
const PASTED_CHARS = 1000; // at once: less is typed
const PREVIEW_CHARS = 40;

// Wraps an input or a textarea. Its value is the text that is kept, followed by what the field holds.
export function longField(input) {
  let kept = "";
  const about = el("span", { class: "kept-text" });
  const edit = button("Edit", () => { open(); input.focus(); }, { class: "small" });
  const remove = button("Remove", () => { keep(""); input.focus(); changed(); }, { class: "small" });
  const chip = el("div", { class: "kept", hidden: true, role: "group", "aria-label": "Long text" }, el("span", { role: "status" }, about), edit, remove);
  const keep = (text) => {
    kept = text;
    chip.hidden = !kept;
    about.replaceChildren(...(kept ? [el("span", { class: "muted" }, `${number(kept.length)} characters, sent whole: `), el("bdi", {}, preview(kept))] : []));
  };
  const open = () => {
    const whole = kept + input.value;
    keep("");
    input.value = whole;
    changed();
  };
  const changed = () => input.dispatchEvent(new Event("change", { bubbles: true }));
  input.addEventListener("beforeinput", (event) => {
    const added = event.data ?? event.dataTransfer?.getData("text/plain") ?? "";
    if (!event.cancelable || added.length < PASTED_CHARS || added.length + input.value.length <= FIELD_CHARS) return;
    event.preventDefault();
    const { value, selectionStart, selectionEnd } = input;
    keep(kept + value.slice(0, selectionStart) + added + value.slice(selectionEnd));
    input.value = "";
    changed();
  });
  return {
    chip, input,
    get value() { return kept + input.value; },
    set value(text) {
      const isLong = text.length > FIELD_CHARS;
      keep(isLong ? text : "");
      input.value = isLong ? "" : text;
    },
    focus() { input.focus(); },
  };
}

function preview(text) { return `${text.slice(0, PREVIEW_CHARS).replaceAll(/\s+/g, " ")}…`; }
