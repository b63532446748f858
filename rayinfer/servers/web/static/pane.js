// One conversation with one model and its settings.

import { call, events } from "./api.js";
import { alertLine, button, el, field, number, seconds, setText } from "./elements.js";
import { classify, imagePicker } from "./images.js";
import { settings } from "./settings.js";
import { resultForm, toolCallsElement, addCallDeltas } from "./tools.js";

const SHOWN_CHARS = 100_000; // of one message: layout of a megabyte without spaces takes seconds
const NEAR_END_PX = 40;
const END_PX = 1e7; // beyond every answer

function shown(text) { return text.length <= SHOWN_CHARS ? text : text.slice(0, SHOWN_CHARS) + hidden(text.length); }

function hidden(length) { return `… (${number(length - SHOWN_CHARS)} more characters are kept, not shown)`; }

export function pane(opened, { onChange = () => {} } = {}) {
  let conversation = opened;
  const images = imagePicker();
  const controls = settings({ tasks: ["generate", "classify_images"], onModel: () => { images.element.hidden = !controls.isImageModel(); } });
  const system = el("input", { type: "text", placeholder: "the template's own" });
  const schema = el("textarea", { rows: 1, spellcheck: "false", placeholder: "none: the answer is free text" });
  const tools = el("textarea", { rows: 1, spellcheck: "false", placeholder: "none: a list of functions" });
  const choice = el("select", {}, ["auto", "required", "none"].map((each) => el("option", { value: each }, each)));
  const log = el("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const figures = el("p", { class: "figures" });
  const element = el("section", { class: "pane", "aria-label": "Conversation with a model" },
    el("details", { open: !matchMedia("(max-width: 700px)").matches }, el("summary", {}, "Model and settings"), controls.element, field("System prompt", system),
      el("details", { class: "more" }, el("summary", {}, "More: sampling, JSON schema, tools"), controls.more, field("JSON schema of the answer", schema),
        el("div", { class: "settings tools" }, field("Tools (JSON)", tools), field("Tool choice", choice)))),
    images.element, log, figures);
  images.element.hidden = true;
  let abort = null, isAtEnd = true;
  // Noted as it is scrolled: to ask in each frame would lay the page out twice.
  log.addEventListener("scroll", () => { isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX; }, { passive: true });
  new ResizeObserver(() => { if (isAtEnd) log.scrollTop = END_PX; }).observe(log);
  system.addEventListener("change", () => { conversation.system = system.value; onChange(conversation); });

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
  const show = () => {
    log.replaceChildren(...conversation.messages.map((message, index) => bubble(message, index)));
    log.scrollTop = log.scrollHeight;
  };
  const bubble = (message, index) => {
    const name = { user: "You", tool: `Result of ${(message.name ?? "a tool").slice(0, 200)}`, labels: "Labels" }[message.role] ?? "Model";
    return el("article", { class: `message ${message.role}` },
      el("div", { class: "sender" }, name, message.role === "user" && !message.image && button("Edit", () => edit(index), { class: "quiet" })),
      message.reasoning && reasoningElement(message.reasoning),
      message.image ? el("p", { class: "muted", dir: "auto" }, `Image ${message.image}`) : null,
      message.labels ? labelList(message.labels) : el("div", { class: "text", dir: "auto" }, shown(message.content)),
      message.tool_calls && toolCallsElement(message.tool_calls));
  };
  const edit = (index) => {
    if (abort) return;
    const area = el("textarea", { rows: 3, value: conversation.messages[index].content, "aria-label": "Edited message" });
    const again = () => {
      if (!area.value.trim()) { area.focus(); return; }
      conversation.messages.length = index;
      ask(area.value);
    };
    const cancel = () => { show(); log.children[index].querySelector("button").focus(); };
    area.addEventListener("keydown", (key) => { if (key.key === "Escape") cancel(); });
    log.children[index].replaceChildren(area, el("div", { class: "row" },
      button("Send again", again, { class: "primary" }), button("Cancel", cancel)));
    area.focus();
  };
  const fail = (text) => log.append(alertLine(text));
  const ask = (text) => {
    if (controls.isImageModel()) return askImage();
    if (!text) return undefined;
    conversation.messages.push({ role: "user", content: text });
    return answer();
  };
  async function askImage() {
    const file = images.take();
    if (!file) { fail("This model reads images: choose one first."); return; }
    conversation.messages.push({ role: "user", content: "", image: file.name });
    abort = new AbortController();
    const started = performance.now();
    try {
      const labels = await classify(controls.values().model, file, abort.signal);
      conversation.messages.push({ role: "labels", content: labels.map((each) => each.label).join(", "), labels });
      show();
      figures.textContent = `answer after ${seconds((performance.now() - started) / 1000)}`;
    } catch (error) { show(); if (error.name !== "AbortError") fail(error.message); }
    abort = null;
    onChange(conversation);
  }
  async function answer() {
    let request;
    try { request = body(); } catch (error) { show(); fail(error.message); return; }
    const mine = conversation, message = { role: "assistant", content: "" };
    conversation.messages.push(message);
    figures.replaceChildren();
    show();
    isAtEnd = true;
    const stream = answerElements(log.lastElementChild, message);
    abort = new AbortController();
    const progress = progressOf(figures);
    let frame = 0, failure = "";
    const draw = () => {
      frame = 0;
      stream.draw();
      progress.draw();
      if (isAtEnd) log.scrollTop = END_PX;
    };
    try {
      for await (const event of events(await call("v1/chat/completions", { body: request, signal: abort.signal }))) {
        progress.take(event);
        if (stream.take(event.choices?.[0]?.delta)) { progress.token(); frame ||= requestAnimationFrame(draw); }
      }
    } catch (error) {
      if (error.name === "AbortError") progress.note = "stopped";
      else { progress.note = "failed"; failure = error.message; }
    }
    cancelAnimationFrame(frame);
    abort = null;
    draw();
    const isEmpty = ["stopped", "failed"].includes(progress.note) && !message.content && !message.reasoning && !message.tool_calls;
    if (isEmpty) mine.messages.splice(mine.messages.indexOf(message), 1); // later requests have no empty answer
    onChange(mine);
    if (mine !== conversation) return; // another one was opened meanwhile
    if (isEmpty) show();
    if (failure) fail(failure);
    if (message.tool_calls) askForResults(message);
  }
  const askForResults = (message) => {
    log.append(resultForm(message.tool_calls, (results) => { conversation.messages.push(...results); answer(); }));
    log.scrollTop = log.scrollHeight;
  };
  const clear = () => { abort?.abort(); figures.replaceChildren(); system.value = conversation.system; show(); };
  return {
    element, ask, body,
    conversation: () => conversation,
    hasImage: () => controls.isImageModel() && images.has(),
    isBusy: () => abort !== null,
    stop: () => abort?.abort(),
    open(other) { abort?.abort(); conversation = other; clear(); },
    regenerate() {
      if (abort) return;
      while (conversation.messages.length && conversation.messages.at(-1).role === "assistant") conversation.messages.pop();
      if (conversation.messages.length) answer();
    },
    start() { clear(); controls.load(figures); },
  };
}

function counted(count, noun) { return `${count} ${noun}${count === 1 ? "" : "s"}`; }

function parsed(area, name) {
  if (!area.value.trim()) return null;
  try { return JSON.parse(area.value); } catch (error) { throw new Error(`The ${name} is not valid JSON: ${error.message}`); }
}

function reasoningElement(text) {
  return el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), el("div", { class: "text", dir: "auto" }, shown(text)));
}

function labelList(labels) {
  return el("ul", { class: "labels" }, labels.map(({ label, score }) => el("li", {}, el("span", { dir: "auto" }, label), ` ${number(score * 100, 1)} %`,
    el("meter", { min: 0, max: 1, value: score, "aria-hidden": "true" }))));
}

// The parts of a message that grow as it comes.
function answerElements(article, message) {
  const element = article.querySelector(".text"), content = growingText(element);
  let thought = null, calls = null;
  return {
    take(delta) {
      if (!delta) return false;
      const reasoning = delta.reasoning_content ?? delta.reasoning;
      if (reasoning) {
        message.reasoning = (message.reasoning ?? "") + reasoning;
        if (!thought) {
          const thinking = reasoningElement("");
          thinking.open = true;
          element.before(thinking);
          thought = growingText(thinking.lastElementChild);
        }
        thought.add(reasoning);
      }
      if (delta.content) { message.content += delta.content; content.add(delta.content); }
      if (delta.tool_calls) addCallDeltas(message.tool_calls ??= [], delta.tool_calls);
      return Boolean(reasoning || delta.content || delta.tool_calls);
    },
    draw() {
      thought?.draw();
      content.draw();
      if (message.tool_calls) {
        const now = toolCallsElement(message.tool_calls);
        if (calls) calls.replaceWith(now); else article.append(now);
        calls = now;
      }
    },
  };
}

// Text that is appended to. Each line is a block of its own: a new token lays out its line again, not all of a long answer.
function growingText(element) {
  let pending = "", length = 0, line = null, rest = null;
  return {
    add(text) { pending += text; },
    draw() {
      const fitting = pending.slice(0, Math.max(0, SHOWN_CHARS - length));
      length += pending.length;
      pending = "";
      for (const part of fitting ? fitting.split(/(?<=\n)/) : []) {
        if (!line) element.append(line = el("span", { class: "line" }));
        line.append(part);
        if (part.endsWith("\n")) line = null;
      }
      if (length <= SHOWN_CHARS) return;
      if (!rest) element.append(rest = document.createTextNode(""));
      rest.data = hidden(length);
    },
  };
}

// Time to the first token, tokens and their rate, while an answer comes.
function progressOf(figures) {
  const started = performance.now();
  const text = el("span", {}), link = el("a", { hidden: true }, "trace");
  figures.replaceChildren(text, " ", link);
  let first = null, count = 0, usage = null, latest = started;
  return {
    note: "",
    take(event) {
      usage = event.usage ?? usage;
      if (event.id && link.hidden) { link.href = `#requests/${encodeURIComponent(event.id)}`; link.hidden = false; }
      const reason = event.choices?.[0]?.finish_reason;
      if (reason === "length") this.note = "ended by length";
    },
    token() { latest = performance.now(); first ??= latest; count += 1; },
    draw() {
      const tokens = usage?.completion_tokens ?? count;
      const elapsed = (latest - (first ?? started)) / 1000;
      const rate = tokens > 1 && elapsed > 0 ? `${number((tokens - 1) / elapsed, 1)} tokens/s` : "";
      setText(text, [first && `first token after ${seconds((first - started) / 1000)}`, tokens && counted(tokens, "token"), rate,
        usage && `${usage.prompt_tokens} in the prompt`, usage?.prompt_tokens_details?.cached_tokens && `${usage.prompt_tokens_details.cached_tokens} of them cached`,
        this.note].filter(Boolean).join(" · "));
    },
  };
}
