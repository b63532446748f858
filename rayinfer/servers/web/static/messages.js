// Messages of a conversation as elements.

import { button, copyButton, el, number } from "./elements.js";
import { longText } from "./text.js";
import { toolCallsElement } from "./tools.js";

const SHOWN_NAME = 200; // characters

// A message; `onEdit` is called for one that may be edited.
export function messageElement(message, onEdit) {
  const name = { user: "You", tool: `Result of ${(message.name ?? "a tool").slice(0, SHOWN_NAME)}`, labels: "Labels" }[message.role] ?? "Model";
  const isText = !message.image && !message.labels;
  return el("article", { class: `message ${message.role}` },
    el("div", { class: "sender" }, el("span", {}, name), el("span", {},
      isText && copyButton(() => message.content, { class: "quiet" }),
      isText && message.role === "user" && button("Edit", onEdit, { class: "quiet edit" }))),
    message.reasoning && reasoningElement(message.reasoning),
    message.image ? el("p", { class: "muted", dir: "auto" }, `Image ${message.image}`) : null,
    message.images && imagesElement(message.images),
    message.labels ? labelList(message.labels) : longText(el("div", { class: "text", dir: "auto" }), message.content),
    message.isCut && el("p", { class: "muted" }, "This browser kept its beginning only."),
    message.tool_calls && toolCallsElement(message.tool_calls));
}

// Their module comes with the first of them.
function imagesElement(images) {
  const place = el("p", { class: "muted" }, images.map((each) => el("bdi", {}, `${each.name} `)));
  import("./attachments.js").then(({ shots }) => place.replaceWith(shots(images)), () => {});
  return place;
}

export function reasoningElement(text) {
  return el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), longText(el("div", { class: "text", dir: "auto" }), text));
}

function labelList(labels) {
  return el("ul", { class: "labels" }, labels.map(({ label, score }) => el("li", {}, el("span", { dir: "auto" }, label), ` ${number(score * 100, 1)} %`,
    el("meter", { min: 0, max: 1, value: score, "aria-hidden": "true" }))));
}
