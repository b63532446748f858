// Chat: one pane, or two side by side with settings of their own. Conversations stay in this browser.

import { deleteConversation, emptyConversation, keepConversation, listedConversations, storedConversation, titleOf } from "./conversations.js";
import { button, confirmDialog, el, exportButtons } from "./elements.js";
import { longField } from "./fields.js";
import { pane } from "./pane.js";
import { afterFrame } from "./slices.js";

export function chatView(view) {
  const picker = el("select", { "aria-label": "Conversation" });
  const first = pane(latestConversation(), { onBusy: () => showBusy(), onModel: () => showAttached(), onChange: (changed) => { keepConversation(changed); list(first.conversation()); } });
  let second = null; // made when it is first wanted
  const field = longField(el("textarea", { rows: 3, "aria-label": "Message", placeholder: "Ask the model (Enter sends, Shift+Enter breaks the line)" })), input = field.input;
  const panes = () => !second || second.element.hidden ? [first] : [first, second];
  const both = el("div", { class: "panes" }, first.element);

  const list = (open) => {
    const stored = listedConversations();
    const known = stored.some((each) => each.id === open.id) ? stored : [{ id: open.id, title: titleOf(open) }, ...stored];
    picker.replaceChildren(...known.map(({ id, title }) => el("option", { value: id }, title)));
    picker.value = open.id;
  };
  const open = (conversation) => { first.open(conversation); second?.open(emptyConversation()); list(conversation); };
  picker.addEventListener("change", () => {
    const chosen = storedConversation(picker.value);
    if (chosen) open(chosen);
    else list(first.conversation()); // another tab has deleted it
  });
  // Images beside text, where a model reads them: their modules come then.
  let attached = null;
  const place = el("div", { hidden: true }), chooser = el("span", { hidden: true }), reading = () => panes().filter((each) => each.takesImages());
  const showAttached = async () => {
    const found = reading().length && !attached && await import("./attachments.js").catch(() => null); // tried again when models are listed
    if (found && !attached) {
      attached = found.attachments({ target: view, focus: () => input.focus(), model: () => reading()[0]?.model() });
      place.replaceWith(attached.element);
      chooser.replaceWith(attached.choose);
    }
    attached?.turn(reading().length > 0);
  };
  const send = () => {
    if (attached?.isReading()) { attached.settled().then(send); return; }
    const text = field.value.trim(), images = attached?.images() ?? [];
    if (panes().some((each) => each.isBusy()) || (!text && !images.length && !panes().some((each) => each.hasImage()))) return;
    const without = panes().find((each) => !each.hasModel());
    if (without) { without.fail("No model is listed yet: the message waits in its field."); return; }
    for (const each of images.length ? reading() : []) {
      const refusal = attached.refusal(each.images(), each.model());
      if (refusal) { each.fail(refusal); return; }
    }
    field.value = "";
    attached?.clear();
    for (const each of panes()) each.ask(text, images);
  };
  input.addEventListener("keydown", (key) => {
    if (key.key === "Enter" && !key.shiftKey && !key.isComposing) { key.preventDefault(); send(); }
  });
  const stop = () => panes().forEach((each) => each.stop());
  for (const part of [input, both]) part.addEventListener("keydown", (key) => { if (key.key === "Escape") stop(); });
  // A button that becomes disabled would lose the focus to nothing.
  const back = (act) => async () => {
    act();
    await afterFrame();
    input.focus({ preventScroll: true });
  };
  const sending = button("Send", back(send), { class: "primary" }), stopping = button("Stop", back(stop), { title: "Escape", disabled: true });
  const again = button("Regenerate", back(() => panes().forEach((each) => each.regenerate())));
  const showBusy = () => {
    const isBusy = panes().some((each) => each.isBusy());
    for (const each of [sending, again]) each.disabled = isBusy;
    stopping.disabled = !isBusy;
  };
  const compare = button("Side by side", () => {
    if (second) {
      second.stop();
      second.element.hidden = !second.element.hidden;
    } else both.append((second = pane(emptyConversation(), { onBusy: () => showBusy(), onModel: () => showAttached() })).element);
    compare.setAttribute("aria-pressed", String(!second.element.hidden));
    if (!second.element.hidden) second.start();
    showBusy();
    showAttached();
  }, { "aria-pressed": "false" });
  const remove = async () => {
    const conversation = first.conversation();
    if (conversation.messages.length && !await confirmDialog("Delete this conversation?", `“${titleOf(conversation)}” is kept in this browser only.`, "Delete")) return;
    deleteConversation(conversation.id);
    conversation.messages.length = 0; // else its answer, which ends here, would store it again
    open(latestConversation());
  };
  view.append(
    el("h1", { class: "hidden" }, "Chat"),
    el("div", { class: "row conversations" }, picker, button("New chat", () => { open(emptyConversation()); input.focus(); }), button("Delete", remove)),
    both,
    el("div", { class: "composer" }, field.chip, input, place, el("div", { class: "row" }, sending, stopping, again,
      compare, chooser, exportButtons("v1/chat/completions", () => panes().map((each) => each.body())))));
  list(first.conversation());
  first.start();
  afterFrame().then(() => { if (document.activeElement === document.body) input.focus(); });
  return {
    enter() { for (const each of panes()) each.enter(); },
    renew() { for (const each of panes()) each.list(); },
  };
}

function latestConversation() { return storedConversation(listedConversations()[0]?.id) ?? emptyConversation(); }
