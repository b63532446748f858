// Chat: one pane, or two side by side with settings of their own. Conversations stay in this browser.

import { deleteConversation, emptyConversation, keepConversation, storedConversations, titleOf } from "./conversations.js";
import { el, button } from "./elements.js";
import { exportButtons } from "./exports.js";
import { pane } from "./pane.js";

export function chatView(main) {
  const picker = el("select", { "aria-label": "Conversation" });
  const first = pane(storedConversations()[0] ?? emptyConversation(), { onChange: (conversation) => { keepConversation(conversation); list(first.conversation()); } });
  let second = null; // made when it is first wanted
  const input = el("textarea", { rows: 3, "aria-label": "Message", placeholder: "Ask the model (Enter sends, Shift+Enter breaks the line)" });
  const panes = () => !second || second.element.hidden ? [first] : [first, second];
  const both = el("div", { class: "panes" }, first.element);

  const list = (open) => {
    const stored = storedConversations();
    const known = stored.some((each) => each.id === open.id) ? stored : [open, ...stored];
    picker.replaceChildren(...known.map((each) => el("option", { value: each.id }, titleOf(each))));
    picker.value = open.id;
  };
  const open = (conversation) => { first.open(conversation); second?.open(emptyConversation()); list(conversation); };
  picker.addEventListener("change", () => {
    const chosen = storedConversations().find((each) => each.id === picker.value);
    if (chosen) open(chosen);
  });
  const send = () => {
    const text = input.value.trim();
    if (!text && !panes().some((each) => each.hasImage())) return;
    if (panes().some((each) => each.isBusy())) return;
    input.value = "";
    for (const each of panes()) each.ask(text);
  };
  input.addEventListener("keydown", (key) => {
    if (key.key === "Enter" && !key.shiftKey && !key.isComposing) { key.preventDefault(); send(); }
  });
  const stop = () => panes().forEach((each) => each.stop());
  for (const part of [input, both]) part.addEventListener("keydown", (key) => { if (key.key === "Escape") stop(); });
  const compare = button("Side by side", () => {
    if (second) second.element.hidden = !second.element.hidden;
    else both.append((second = pane(emptyConversation())).element);
    compare.setAttribute("aria-pressed", String(!second.element.hidden));
    if (!second.element.hidden) second.start();
  }, { "aria-pressed": "false" });
  main.append(
    el("h1", { class: "hidden" }, "Chat"),
    el("div", { class: "row conversations" }, picker,
      button("New chat", () => open(emptyConversation())),
      button("Delete", () => { deleteConversation(first.conversation().id); open(storedConversations()[0] ?? emptyConversation()); })),
    both,
    el("div", { class: "composer" }, input, el("div", { class: "row" },
      button("Send", send, { class: "primary" }), button("Stop", stop, { title: "Escape" }),
      button("Regenerate", () => panes().forEach((each) => each.regenerate())),
      compare, exportButtons("v1/chat/completions", () => panes().map((each) => each.body())))));
  list(first.conversation());
  first.start();
  input.focus();
  return stop;
}
