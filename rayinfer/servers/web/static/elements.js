// Elements without markup in strings: whatever a model or a client sent is shown as text.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function button(label, onclick, attributes = {}) { return el("button", { type: "button", onclick, ...attributes }, label); }

export function field(label, input) { return el("label", { class: "field" }, el("span", {}, label), input); }

export function alertLine(text) { return el("p", { class: "error", role: "alert" }, text); }

export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value < 1 ? `${number(value * 1000, value < 0.01 ? 1 : 0)} ms` : `${number(value, 2)} s`;
}

export function clockTime(timeS) { return new Date(timeS * 1000).toLocaleTimeString(); }

// Sets a text only where it differs: what a screen reader announces, and what is laid out again, stays little.
export function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

function openDialog(title, children) {
  const dialog = el("dialog", { "aria-label": title }, el("h2", {}, title), children);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function showDialog(title, text) {
  const shown = el("pre", { tabindex: "0" }, text);
  const copied = button("Copy", async () => { setText(copied, await copy(shown) ? "Copied" : "Selected: copy it by the keyboard"); });
  const dialog = openDialog(title, [shown, el("div", { class: "row" }, copied, button("Close", () => dialog.close()))]);
}

// Copies an element's text. Over plain HTTP of another machine browsers have no clipboard, but copy what is selected.
async function copy(element) {
  try { await navigator.clipboard.writeText(element.textContent); return true; } catch { /* none, or not allowed */ }
  getSelection().selectAllChildren(element);
  return document.execCommand("copy");
}

// Asks before something is done: resolves to the form's values, or to null.
export function confirmDialog(title, text, label, fields = []) {
  return new Promise((resolve) => {
    let outcome = null;
    const form = el("form", { method: "dialog" }, el("p", {}, text), fields,
      el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, label), button("Cancel", () => dialog.close())));
    form.addEventListener("submit", () => { outcome = Object.fromEntries(new FormData(form)); });
    const dialog = openDialog(title, [form]);
    dialog.addEventListener("close", () => resolve(outcome));
  });
}
