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
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function field(label, input) { return el("label", { class: "field" }, el("span", {}, label), input); }

export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value < 1 ? `${number(value * 1000, value < 0.01 ? 1 : 0)} ms` : `${number(value, 2)} s`;
}

export function showDialog(title, text) {
  const area = el("pre", { tabindex: "0" }, text);
  const dialog = el("dialog", { "aria-label": title },
    el("h2", {}, title), area,
    el("div", { class: "row" },
      el("button", { type: "button", onclick: () => navigator.clipboard?.writeText(text) }, "Copy"),
      el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
