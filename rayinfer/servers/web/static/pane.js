// One conversation with one model and its settings.

import { answerElements, progressOf } from "./answer.js";
import { call, events } from "./api.js";
import { alertLine, button, el, field, seconds } from "./elements.js";
import { longField } from "./fields.js";
import { classify, imagePicker } from "./images.js";
import { messageElement } from "./messages.js";
import { settings } from "./settings.js";
import { resultForm } from "./tools.js";

const NEAR_END_PX = 40;
const END_PX = 1e7; // beyond every answer

// `onChange` is called with a conversation that has changed, `onBusy` where an answer begins or ends.
export function pane(opened, { onChange = () => {}, onBusy = () => {} } = {}) {
  let conversation = opened;
  const images = imagePicker();
  const controls = settings({ tasks: ["generate", "classify_images"], onModel: () => { images.element.hidden = !controls.isImageModel(); } });
  const system = longArea("the template's own"), schema = longArea("none: the answer is free text", { spellcheck: "false" });
  const tools = longArea("none: a list of functions", { spellcheck: "false" });
  const choice = el("select", {}, ["auto", "required", "none"].map((each) => el("option", { value: each }, each)));
  const log = el("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const figures = el("p", { class: "figures" }), notice = el("p", { class: "notice", role: "status" });
  const element = el("section", { class: "pane", "aria-label": "Conversation with a model" },
    el("details", { open: !matchMedia("(max-width: 700px)").matches }, el("summary", {}, "Model and settings"), controls.element, field("System prompt", system.input), system.chip,
      el("details", { class: "more" }, el("summary", {}, "More: sampling, JSON schema, tools"), controls.more, field("JSON schema of the answer", schema.input), schema.chip,
        el("div", { class: "settings tools" }, field("Tools (JSON)", tools.input), field("Tool choice", choice)), tools.chip)),
    notice, images.element, log, figures);
  images.element.hidden = true;
  let abort = null, isAtEnd = true, place = 0;
  // Noted as it is scrolled: to ask in each frame would lay the page out twice.
  log.addEventListener("scroll", () => {
    place = log.scrollTop;
    isAtEnd = log.scrollHeight - place - log.clientHeight < NEAR_END_PX;
  }, { passive: true });
  new ResizeObserver(() => { if (isAtEnd) log.scrollTop = END_PX; }).observe(log);
  system.input.addEventListener("change", () => { conversation.system = system.value; onChange(conversation); });

  const body = () => {
    const messages = conversation.messages.filter((each) => !each.image && each.role !== "labels").map(({ role, content, tool_calls, tool_call_id }) =>
      ({ role, content, ...(tool_calls && { tool_calls }), ...(tool_call_id && { tool_call_id }) }));
    if (conversation.system) messages.unshift({ role: "system", content: conversation.system });
    const format = parsed(schema, "JSON schema"), functions = parsed(tools, "list of tools");
    return {
      ...controls.values(),
      ...(format && { response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: format } } }),
      ...(functions && { tools: functions, tool_choice: choice.value }),
      messages, stream: true, stream_options: { include_usage: true },
    };
  };
  const setBusy = (controller) => {
    abort = controller;
    log.ariaBusy = String(controller !== null); // read aloud once it is whole
    onBusy();
  };
  const show = () => {
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
  const edit = (index) => {
    if (abort) return;
    const area = longField(el("textarea", { rows: 3, "aria-label": "Edited message" }));
    area.value = conversation.messages[index].content;
    const again = () => {
      if (!area.value.trim()) { area.focus(); return; }
      conversation.messages.length = index;
      ask(area.value);
    };
    const cancel = () => { show(); log.children[index].querySelector(".edit").focus(); };
    area.input.addEventListener("keydown", (key) => { if (key.key === "Escape") cancel(); });
    log.children[index].classList.add("edited");
    log.children[index].replaceChildren(area.chip, area.input, el("div", { class: "row" },
      button("Send again", again, { class: "primary" }), button("Cancel", cancel)));
    area.focus();
  };
  const fail = (text) => { log.append(alertLine(text)); toEnd(); };
  const ask = (text) => {
    if (controls.isImageModel()) return askImage();
    if (!text) return undefined;
    conversation.messages.push({ role: "user", content: text });
    return answer();
  };
  async function askImage() {
    const file = images.take();
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
    onChange(mine);
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
    setTimeout(() => onChange(mine));
    if (mine !== conversation) return; // another one was opened meanwhile
    if (isEmpty || message.tool_calls) show();
    if (failure) fail(failure);
  }
  const clear = () => { abort?.abort(); setBusy(null); figures.replaceChildren(); system.value = conversation.system; show(); };
  return {
    element, ask, body,
    conversation: () => conversation,
    hasImage: () => controls.isImageModel() && images.has(),
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

function longArea(placeholder, attributes) { return longField(el("textarea", { rows: 1, placeholder, ...attributes })); }

function parsed(area, name) {
  if (!area.value.trim()) return null;
  try { return JSON.parse(area.value); } catch (error) { throw new Error(`The ${name} is not valid JSON: ${error.message}`); }
}
