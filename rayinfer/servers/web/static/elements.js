// Elements without markup in strings: whatever a model or a client sent is shown as text.

const SHOWN_ERROR = 2000; // characters: an error may repeat what was sent
const SHOWN_CODE = 20_000;
const COPIED_MS = 4000;

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

// Characters that turn the direction of what follows, written out as their codes (as in JSON and Python).
export function plain(text) {
  return text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function button(label, onclick, attributes = {}) { return el("button", { type: "button", onclick, ...attributes }, label); }

export function field(label, input) { return el("label", { class: "field" }, el("span", {}, label), input); }

export function alertLine(text) { return el("p", { class: "error", role: "alert" }, plain(text.length > SHOWN_ERROR ? `${text.slice(0, SHOWN_ERROR)}…` : text)); }

// Written by hand: the browser's own formats take milliseconds to load, and tables have hundreds of numbers.
export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const [whole, fraction] = value.toFixed(digits).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction === undefined ? grouped : `${grouped}.${fraction}`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value < 1 ? `${number(value * 1000, value < 0.01 ? 1 : 0)} ms` : `${number(value, 2)} s`;
}

// Hours, minutes and seconds of this machine's day.
export function clockTime(timeS) { return new Date(timeS * 1000).toTimeString().slice(0, 8); }

// Sets a text only where it differs: what a screen reader announces, and what is laid out again, stays little.
export function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

function openDialog(named, children) {
  const title = plain(named), dialog = el("dialog", { "aria-label": title }, el("h2", {}, title), ...children);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Shows a text and copies `whole()`.
export function showDialog(title, text, whole = () => text, note = "") {
  const isLong = text.length > SHOWN_CODE;
  const shown = el("pre", { tabindex: "0" }, isLong ? `${text.slice(0, SHOWN_CODE)}…` : text);
  const about = isLong ? `${note} Its end is not shown, but copied.` : note;
  const dialog = openDialog(title, [shown, about ? el("p", { class: "muted" }, about) : null,
    el("div", { class: "row" }, copyButton(whole, { shown }), button("Close", () => dialog.close()))]);
}

// Buttons that show the next requests to a path in other forms.
export function exportButtons(path, bodies) {
  return ["curl", "Python"].map((form) => button(form, async () => {
    try { (await import("./exports.js")).showExport(form, path, bodies); } catch { showDialog(form, "This could not be loaded: the service is unreachable."); }
  }));
}

// A button that copies a text, and says so.
export function copyButton(text, { shown = null, ...attributes } = {}) {
  const copied = button("Copy", async () => {
    setText(copied, await copy(text(), shown ?? copied) ? "Copied" : "Not copied: select it, and copy it by the keyboard");
    setTimeout(() => setText(copied, "Copy"), COPIED_MS);
  }, attributes);
  return copied;
}

// Over plain HTTP of another machine browsers have no clipboard, but a selection's copy may be given another text.
async function copy(text, selected) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* none, or not allowed */ }
  const give = (event) => { event.clipboardData.setData("text/plain", text); event.preventDefault(); };
  getSelection().selectAllChildren(selected);
  document.addEventListener("copy", give);
  try { return document.execCommand("copy"); } finally { document.removeEventListener("copy", give); }
}

// Asks before something is done: resolves to the form's values, or to null.
export function confirmDialog(title, text, label, fields = []) {
  return new Promise((resolve) => {
    let outcome = null;
    const form = el("form", { method: "dialog" }, el("p", {}, plain(text)), fields,
      el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, label), button("Cancel", () => dialog.close())));
    form.addEventListener("submit", () => { outcome = Object.fromEntries(new FormData(form)); });
    const dialog = openDialog(title, [form]);
    dialog.addEventListener("close", () => resolve(outcome));
  });
}
