// Completion of a text, token by token: how likely each was, and what else could have come.

import { call, events } from "./api.js";
import { button, el, number, seconds } from "./elements.js";
import { exportButtons } from "./exports.js";
import { settings } from "./settings.js";

const NUM_ALTERNATIVES = 5;
const SHOWN_CHARS = 10_000; // of one token's text
const HINT = "Choose a token to see its alternatives.";

export function tokensView(main) {
  const controls = settings();
  const prompt = el("textarea", { rows: 4, "aria-label": "Text to complete", value: "The capital of France is" });
  const output = el("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
  const panel = el("div", { class: "alternatives", role: "status" }, HINT);
  const figures = el("p", { class: "figures" });
  let abort = null, tokens = [];

  const choose = (index) => {
    const { token, logprob, top } = tokens[index];
    const before = prompt.value + tokens.slice(0, index).map((each) => each.token).join("");
    panel.replaceChildren(el("p", {}, "Token ", el("code", {}, visible(token)), `, probability ${percent(logprob)}. Go on with another:`),
      el("ul", {}, Object.entries(top).sort((a, b) => b[1] - a[1]).map(([other, value]) =>
        el("li", {}, el("button", { type: "button", disabled: other === token, onclick: () => run(before + other) },
          el("code", {}, visible(other)), ` ${percent(value)}`), bar(value)))));
  };
  const add = (piece) => {
    const index = tokens.push(piece) - 1;
    output.append(el("button", { type: "button", class: `token p${level(piece.logprob)}`, title: percent(piece.logprob),
      onclick: () => choose(index) }, piece.token.slice(0, SHOWN_CHARS).replaceAll("\n", "⏎\n") || "∅"));
  };
  const body = (text) => ({ max_tokens: 40, ...controls.values(), prompt: text, stream: true, logprobs: NUM_ALTERNATIVES });
  async function run(text) {
    abort?.abort();
    const mine = abort = new AbortController();
    prompt.value = text;
    tokens = [];
    output.replaceChildren();
    panel.replaceChildren(HINT);
    const started = performance.now();
    let first = null;
    try {
      for await (const event of events(await call("v1/completions", { body: body(text), signal: mine.signal }))) {
        const logprobs = event.choices?.[0]?.logprobs;
        if (!logprobs) continue;
        first ??= performance.now();
        logprobs.tokens.forEach((token, place) => add({
          token, logprob: logprobs.token_logprobs[place], top: logprobs.top_logprobs?.[place] ?? {} }));
      }
      const mean = tokens.reduce((sum, each) => sum + each.logprob, 0) / (tokens.length || 1);
      figures.textContent = tokens.length ? `${tokens.length} token${tokens.length === 1 ? "" : "s"} · perplexity ${number(Math.exp(-mean), 2)} · ` +
        `first after ${seconds((first - started) / 1000)} · ${number((tokens.length - 1) / ((performance.now() - first) / 1000), 1)} tokens/s` : "No token came.";
    } catch (error) {
      if (error.name !== "AbortError") figures.textContent = error.message;
      else if (mine === abort) figures.textContent = "Stopped.";
    }
    if (first === null && mine === abort) figures.textContent ||= `Nothing after ${number(performance.now() - started)} ms.`;
  }
  main.append(el("h1", {}, "Tokens"), controls.element,
    el("details", { class: "more" }, el("summary", {}, "More sampling settings"), controls.more), prompt,
    el("div", { class: "row" },
      button("Complete", () => run(prompt.value), { class: "primary" }), button("Stop", () => abort?.abort()),
      exportButtons("v1/completions", () => [body(prompt.value)])),
    output, el("p", { class: "legend" }, "Probability: ", ["under 10 %", "under 50 %", "under 90 %", "90 % and over"].map((label, index) =>
      el("span", { class: `token p${index}` }, label))),
    panel, figures);
  controls.load(figures);
  return () => abort?.abort();
}

function level(logprob) {
  const share = Math.exp(logprob);
  return share < 0.1 ? 0 : share < 0.5 ? 1 : share < 0.9 ? 2 : 3;
}

function percent(logprob) { return `${number(Math.exp(logprob) * 100, 1)} %`; }

function bar(logprob) { return el("meter", { min: 0, max: 1, value: Math.exp(logprob), "aria-hidden": "true" }); }

function visible(token) { return token.slice(0, SHOWN_CHARS).replaceAll("\n", "⏎").replaceAll(" ", "·") || "(empty)"; }
