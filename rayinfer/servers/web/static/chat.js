// Chat: one pane, or two side by side with settings of their own. Conversations stay in this browser.

import { call, events, url } from "./api.js";
import { el, field, number, seconds, showDialog } from "./elements.js";
import { settings } from "./settings.js";

const STORE = "rayinfer.chat";
const SHOWN_CHARS = 100_000; // of one message: layout of a megabyte without spaces takes seconds

function shown(text) {
  return text.length <= SHOWN_CHARS ? text : `${text.slice(0, SHOWN_CHARS)}… (${number(text.length - SHOWN_CHARS)} more characters are kept, not shown)`;
}

function load() {
  try { return { system: "", messages: [], ...JSON.parse(localStorage.getItem(STORE) ?? "{}") }; }
  catch { return { system: "", messages: [] }; }
}

function save(conversation) {
  try { localStorage.setItem(STORE, JSON.stringify(conversation)); } catch { /* full or forbidden: not kept */ }
}

export function chatView(main) {
  const first = pane(load(), save);
  const second = pane({ system: "", messages: [] }, () => {});
  second.element.hidden = true;
  const input = el("textarea", { rows: 3, "aria-label": "Message", placeholder: "Ask the model (Enter sends, Shift+Enter breaks the line)" });
  const panes = () => second.element.hidden ? [first] : [first, second];
  const send = () => {
    const text = input.value.trim();
    if (!text || panes().some((each) => each.isBusy())) return;
    input.value = "";
    for (const each of panes()) each.ask(text);
  };
  input.addEventListener("keydown", (key) => {
    if (key.key === "Enter" && !key.shiftKey && !key.isComposing) { key.preventDefault(); send(); }
  });
  const compare = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
    second.element.hidden = !second.element.hidden;
    compare.setAttribute("aria-pressed", String(!second.element.hidden));
    if (!second.element.hidden) second.start();
  } }, "Side by side");
  main.append(
    el("h1", { class: "hidden" }, "Chat"),
    el("div", { class: "panes" }, first.element, second.element),
    el("div", { class: "composer" }, input, el("div", { class: "row" },
      el("button", { type: "button", class: "primary", onclick: send }, "Send"),
      el("button", { type: "button", onclick: () => panes().forEach((each) => each.stop()) }, "Stop"),
      el("button", { type: "button", onclick: () => panes().forEach((each) => each.regenerate()) }, "Regenerate"),
      el("button", { type: "button", onclick: () => panes().forEach((each) => each.clear()) }, "New chat"),
      compare,
      el("button", { type: "button", onclick: () => showDialog("The next request as curl", nextRequest(first, asCurl)) }, "curl"),
      el("button", { type: "button", onclick: () => showDialog("The next request in Python", nextRequest(first, asPython)) }, "Python"))));
  first.start();
  input.focus();
  return () => panes().forEach((each) => each.stop());
}

function pane(conversation, keep) {
  const controls = settings();
  const system = el("input", { type: "text", value: conversation.system, placeholder: "the template's own" });
  const schema = el("textarea", { rows: 1, spellcheck: "false", placeholder: "none: the answer is free text" });
  const log = el("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const figures = el("p", { class: "figures" });
  const element = el("section", { class: "pane", "aria-label": "Conversation with a model" },
    el("details", { open: !matchMedia("(max-width: 700px)").matches }, el("summary", {}, "Model and settings"), controls.element, field("System prompt", system), field("JSON schema of the answer", schema)),
    log, figures);
  let abort = null;
  system.addEventListener("change", () => { conversation.system = system.value; keep(conversation); });

  const body = () => {
    const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
    if (conversation.system) messages.unshift({ role: "system", content: conversation.system });
    const format = schema.value.trim();
    return { ...controls.values(), ...(format && { response_format: responseFormat(format) }), messages, stream: true, stream_options: { include_usage: true } };
  };
  const show = () => {
    log.replaceChildren(...conversation.messages.map((message, index) => bubble(message, () => edit(index))));
    log.scrollTop = log.scrollHeight;
  };
  const edit = (index) => {
    if (abort) return;
    const area = el("textarea", { rows: 3, value: conversation.messages[index].content, "aria-label": "Edited message" });
    log.children[index].replaceChildren(area, el("div", { class: "row" },
      el("button", { type: "button", class: "primary", onclick: () => {
        conversation.messages.length = index;
        ask(area.value);
      } }, "Send again"),
      el("button", { type: "button", onclick: show }, "Cancel")));
    area.focus();
  };
  const ask = (text) => {
    conversation.messages.push({ role: "user", content: text });
    answer();
  };
  async function answer() {
    let request;
    try { request = body(); } catch (error) {
      log.append(el("p", { class: "error", role: "alert" }, `The JSON schema is not valid JSON: ${error.message}`));
      return;
    }
    const message = { role: "assistant", content: "" };
    conversation.messages.push(message);
    figures.replaceChildren();
    show();
    const text = log.lastElementChild.querySelector(".text");
    abort = new AbortController();
    const started = performance.now();
    let first = null, count = 0, usage = null, id = "", note = "";
    const figuresNow = () => {
      const tokens = usage?.completion_tokens ?? count;
      const elapsed = (performance.now() - (first ?? started)) / 1000;
      const rate = tokens > 1 && elapsed > 0 ? `${number((tokens - 1) / elapsed, 1)} tokens/s` : "";
      const parts = [first && `first token after ${seconds((first - started) / 1000)}`, tokens && `${tokens} tokens`, rate,
        usage && `${usage.prompt_tokens} in the prompt`, note];
      figures.replaceChildren(parts.filter(Boolean).join(" · "), ...(id ? [" ", el("a", { href: `#requests/${encodeURIComponent(id)}` }, "trace")] : []));
    };
    let frame = 0;
    const draw = () => { frame = 0; text.textContent = shown(message.content); figuresNow(); log.scrollTop = log.scrollHeight; };
    try {
      for await (const event of events(await call("v1/chat/completions", { body: request, signal: abort.signal }))) {
        id = event.id ?? id;
        usage = event.usage ?? usage;
        const choice = event.choices?.[0];
        const delta = choice?.delta?.content;
        if (choice?.finish_reason === "length") note = "ended by length";
        if (!delta) continue;
        first ??= performance.now();
        count += 1;
        message.content += delta;
        frame ||= requestAnimationFrame(draw);
      }
    } catch (error) {
      if (error.name === "AbortError") note = "stopped";
      else {
        note = "failed";
        log.append(el("p", { class: "error", role: "alert" }, error.message));
      }
    }
    cancelAnimationFrame(frame);
    abort = null;
    draw();
    keep(conversation);
  }
  return {
    element, ask, body,
    isBusy: () => abort !== null,
    stop: () => abort?.abort(),
    clear() { abort?.abort(); conversation.messages = []; keep(conversation); figures.replaceChildren(); show(); },
    regenerate() {
      if (abort || !conversation.messages.length) return;
      if (conversation.messages.at(-1).role === "assistant") conversation.messages.pop();
      if (conversation.messages.length) answer();
    },
    async start() {
      show();
      try {
        if (!await controls.load()) figures.textContent = "No model that generates text is served yet.";
      } catch (error) { figures.textContent = error.message; }
    },
  };
}

function nextRequest(pane_, write) {
  try { return write(pane_.body()); } catch (error) { return `The JSON schema is not valid JSON: ${error.message}`; }
}

function responseFormat(text) {
  return { type: "json_schema", json_schema: { name: "answer", strict: true, schema: JSON.parse(text) } };
}

function bubble({ role, content }, edit) {
  return el("article", { class: `message ${role}` },
    el("div", { class: "who" }, role === "user" ? "You" : "Model",
      role === "user" ? el("button", { type: "button", class: "quiet", onclick: edit }, "Edit") : null),
    el("div", { class: "text", dir: "auto" }, shown(content)));
}

function asCurl(body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -N ${url("v1/chat/completions")} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
}

// A JSON value in Python's spelling.
function literal(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
}

function asPython(body) {
  const { messages, stream, stream_options, ...rest } = body;
  const options = Object.entries(rest).map(([name, value]) => `    ${name}=${literal(value)},\n`).join("");
  return "from openai import OpenAI\n\n" +
    `client = OpenAI(base_url=${JSON.stringify(String(url("v1")))}, api_key="none")\n` +
    `stream = client.chat.completions.create(\n${options}    messages=${literal(messages)},\n    stream=True,\n)\n` +
    "for chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or \"\", end=\"\", flush=True)\n";
}
