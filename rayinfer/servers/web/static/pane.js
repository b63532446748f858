// One conversation with one model and its settings.

import { answerElements, progressOf } from "./answer.js";
import { call, events } from "./api.js";
import { alertLine, button, el, field, seconds, setText } from "./elements.js";
import { longField } from "./fields.js";
import { messageElement } from "./messages.js";
import { settings } from "./settings.js";
import { resultForm } from "./tools.js";

const FILE = Symbol.for("file"); // of an image that is sent: its name, for exports
const NEAR_END_PX = 40;
const END_PX = 1e7; // beyond every answer

// `onChange` is called with a conversation that has changed, `onBusy` where an answer begins or ends, `onModel` where
// another model is chosen.
export function pane(opened, { onChange = () => {}, onBusy = () => {}, onModel = () => {} } = {}) {
  let conversation = opened;
  const picking = el("div"); // for a model that classifies images
  let images = null, classify = null;
  const controls = settings({ tasks: ["generate", "classify_images"], onModel: () => { showPicker(); showUnread(); onModel(); } });
  const system = longArea("the template's own"), schema = longArea("none: the answer is free text", { spellcheck: "false" });
  const tools = longArea("none: a list of functions", { spellcheck: "false" });
  const choice = el("select", {}, ["auto", "required", "none"].map((each) => el("option", { value: each }, each)));
  const log = el("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const figures = el("p", { class: "figures" }), unread = el("p", { class: "notice", role: "status" }), notice = el("p", { class: "notice", role: "status" });
  const element = el("section", { class: "pane", "aria-label": "Conversation with a model" },
    el("details", { open: !matchMedia("(max-width: 700px)").matches }, el("summary", {}, "Model and settings"), controls.element, field("System prompt", system.input), system.chip,
      el("details", { class: "more" }, el("summary", {}, "More: sampling, JSON schema, tools"), controls.more, field("JSON schema of the answer", schema.input), schema.chip,
        el("div", { class: "settings tools" }, field("Tools (JSON)", tools.input), field("Tool choice", choice)), tools.chip)),
    notice, unread, picking, log, figures);
  picking.hidden = true;
  let abort = null, isAtEnd = true, place = 0;
  // Noted as it is scrolled: to ask in each frame would lay the page out twice.
  log.addEventListener("scroll", () => {
    place = log.scrollTop;
    isAtEnd = log.scrollHeight - place - log.clientHeight < NEAR_END_PX;
  }, { passive: true });
  new ResizeObserver(() => { if (isAtEnd) log.scrollTop = END_PX; }).observe(log);
  system.input.addEventListener("change", () => { conversation.system = system.value; onChange(conversation); });
  // A question is stored before its answer ends, and what there is of an answer when the page is left.
  const unsaved = new Set();
  const save = () => { for (const changed of unsaved) { unsaved.delete(changed); onChange(changed); } };
  const saveSoon = (changed) => { unsaved.add(changed); setTimeout(save); };
  addEventListener("pagehide", () => { if (abort) unsaved.add(conversation); save(); });

  const body = () => {
    const messages = conversation.messages.filter((each) => !each.image && each.role !== "labels").map(({ role, content, images: sent, tool_calls, tool_call_id }) =>
      ({ role, content: controls.takesImages() && sent ? contentParts(content, sent) : content, ...(tool_calls && { tool_calls }), ...(tool_call_id && { tool_call_id }) }));
    if (conversation.system) messages.unshift({ role: "system", content: conversation.system });
    const format = parsed(schema, "JSON schema"), functions = parsed(tools, "list of tools");
    return {
      ...controls.values(),
      ...(format && { response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: format } } }),
      ...(functions && { tools: functions, tool_choice: choice.value }),
      messages, stream: true, stream_options: { include_usage: true },
    };
  };
  const sentImages = (messages) => messages.flatMap((each) => each.images ?? []).filter((each) => each.url);
  const showPicker = async () => {
    picking.hidden = !controls.isImageModel();
    const found = !picking.hidden && !images && await import("./images.js").catch(() => null); // tried again when models are listed
    if (!found || images) return;
    images = found.imagePicker();
    classify = found.classify;
    picking.append(images.element);
  };
  const showUnread = () => {
    setText(unread, controls.chosen() && !controls.takesImages() && sentImages(conversation.messages).length ? "This model reads text only: images are not sent to it." : "");
  };
  const setBusy = (controller) => {
    abort = controller;
    log.ariaBusy = String(controller !== null); // read aloud once it is whole
    onBusy();
  };
  const show = () => {
    showUnread();
    log.replaceChildren(...conversation.messages.map((message, index) => messageElement(message, () => edit(index))));
    const last = conversation.messages.at(-1);
    if (last?.tool_calls && !abort) log.append(resultForm(last.tool_calls, (results) => { conversation.messages.push(...results); answer(); }));
    toEnd();
  };
  // In the next frame, as it lays the page out; and after that, as blocks that come into sight get their true heights.
  const toEnd = () => {
    const keep = () => { if (isAtEnd) log.scrollTop = END_PX; };
    isAtEnd = true;
    requestAnimationFrame(() => { keep(); requestAnimationFrame(keep); });
  };
  const edit = async (index) => {
    const mine = conversation, message = mine.messages[index], takesImages = controls.takesImages();
    const modules = takesImages && await import("./attachments.js").catch(() => null);
    if (abort || mine !== conversation || mine.messages[index] !== message) return;
    const area = longField(el("textarea", { rows: 3, "aria-label": "Edited message" })), form = log.children[index];
    const added = modules ? modules.attachments({ target: form, focus: () => area.focus(), model: () => controls.chosen(), images: sentImages([message]) }) : null;
    area.value = message.content;
    const again = async () => {
      await added?.settled();
      const now = added ? added.images() : message.images ?? [];
      if (!area.value.trim() && !now.length) { area.focus(); return; }
      const refusal = added?.refusal(sentImages(mine.messages.slice(0, index)));
      if (refusal) { fail(refusal); return; }
      mine.messages.length = index;
      ask(area.value, now);
    };
    const cancel = () => { show(); log.children[index].querySelector(".edit").focus(); };
    area.input.addEventListener("keydown", (key) => { if (key.key === "Escape") cancel(); });
    form.classList.add("edited");
    form.replaceChildren(area.chip, area.input, ...(added ? [added.element] : []), el("div", { class: "row" },
      button("Send again", again, { class: "primary" }), button("Cancel", cancel), added ? added.choose : null));
    area.focus();
  };
  const fail = (text) => { log.append(alertLine(text)); toEnd(); };
  const ask = (text, images = []) => {
    if (controls.isImageModel()) return askImage();
    if (!text && images.length && !controls.takesImages()) return fail("This model reads text only: write a message beside the images.");
    if (!text && !images.length) return undefined;
    conversation.messages.push({ role: "user", content: text, ...(images.length && { images }) });
    return answer();
  };
  async function askImage() {
    const file = images?.take();
    if (!file) { fail("This model reads images: choose one first."); return; }
    const mine = conversation, controller = new AbortController(), started = performance.now();
    mine.messages.push({ role: "user", content: "", image: file.name });
    setBusy(controller);
    let failure = null;
    try {
      const labels = await classify(controls.values().model, file, controller.signal);
      mine.messages.push({ role: "labels", content: labels.map((each) => each.label).join(", "), labels });
      figures.textContent = `answer after ${seconds((performance.now() - started) / 1000)}`;
    } catch (error) { if (error.name !== "AbortError") failure = error.message; }
    if (abort === controller) setBusy(null);
    saveSoon(mine);
    if (mine !== conversation) return; // another one was opened meanwhile
    show();
    if (failure !== null) fail(failure);
  }
  async function answer() {
    let request;
    try { request = body(); } catch (error) { show(); fail(error.message); return; }
    const mine = conversation, controller = new AbortController(), message = { role: "assistant", content: "" };
    mine.messages.push(message);
    setBusy(controller);
    saveSoon(mine);
    show();
    const stream = answerElements(log.lastElementChild, message);
    const progress = progressOf(figures);
    let frame = 0, failure = "";
    const draw = () => {
      frame = 0;
      stream.draw();
      progress.draw();
      if (isAtEnd) log.scrollTop = END_PX;
    };
    try {
      for await (const event of events(await call("v1/chat/completions", { body: request, signal: controller.signal }), { isAnswer: true })) {
        progress.take(event);
        if (stream.take(event.choices?.[0]?.delta)) { progress.token(); frame ||= requestAnimationFrame(draw); }
      }
    } catch (error) {
      if (error.name === "AbortError") progress.note = "stopped";
      else { progress.note = "failed"; failure = error.message; }
    }
    cancelAnimationFrame(frame);
    if (abort === controller) setBusy(null);
    draw();
    const isEmpty = ["stopped", "failed"].includes(progress.note) && !message.content && !message.reasoning && !message.tool_calls;
    if (isEmpty) mine.messages.splice(mine.messages.indexOf(message), 1); // later requests have no empty answer
    saveSoon(mine);
    if (mine !== conversation) return; // another one was opened meanwhile
    if (isEmpty || message.tool_calls) show();
    if (failure) fail(failure);
  }
  const clear = () => { abort?.abort(); setBusy(null); figures.replaceChildren(); system.value = conversation.system; show(); };
  return {
    element, ask, body,
    conversation: () => conversation,
    model: () => controls.chosen(),
    takesImages: () => controls.takesImages(),
    images: () => sentImages(conversation.messages),
    hasImage: () => controls.isImageModel() && Boolean(images?.has()),
    hasModel: () => controls.values().model !== "",
    isBusy: () => abort !== null,
    fail,
    stop: () => abort?.abort(),
    open(other) { abort?.abort(); conversation = other; clear(); },
    regenerate() {
      if (abort) return;
      while (conversation.messages.length && conversation.messages.at(-1).role === "assistant") conversation.messages.pop();
      if (conversation.messages.length) answer();
    },
    start() { clear(); controls.load(notice); },
    // Is called when the view is shown again.
    enter() { log.scrollTop = isAtEnd ? END_PX : place; controls.load(notice); },
    list() { controls.load(notice); },
  };
}

function contentParts(text, images) {
  const parts = images.filter((each) => each.url).map(({ name, url }) => ({ type: "image_url", image_url: { url, [FILE]: name } }));
  return parts.length ? [...parts, ...(text ? [{ type: "text", text }] : [])] : text;
}

function longArea(placeholder, attributes) { return longField(el("textarea", { rows: 1, placeholder, ...attributes })); }

function parsed(area, name) {
  if (!area.value.trim()) return null;
  try { return JSON.parse(area.value); } catch (error) { throw new Error(`The ${name} is not valid JSON: ${error.message}`); }
}
