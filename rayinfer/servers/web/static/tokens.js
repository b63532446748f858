// Completion of a text, token by token: how likely each was, and what else could have come.

import { call, events } from "./api.js";
import { alertLine, button, el, exportButtons, number, plain, seconds } from "./elements.js";
import { longField } from "./fields.js";
import { settings } from "./settings.js";

const NUM_TOKENS = 40, NUM_ALTERNATIVES = 5;
const SHOWN_CHARS = 2000; // of one token's text
const BLOCK_TOKENS = 200; // laid out together, up to the next that begins with a space
const MOST_BLOCK_TOKENS = 300;
const HINT = "Choose a token to see its alternatives.";

export function tokensView(view) {
  const controls = settings({ own: { max_tokens: NUM_TOKENS } });
  const prompt = longField(el("textarea", { rows: 4, "aria-label": "Text to complete" }));
  prompt.value = "The capital of France is";
  const output = el("div", { class: "tokens", role: "group", "aria-label": "Tokens", tabindex: "-1" });
  const panel = el("div", { class: "alternatives", role: "status" }, HINT);
  const figures = el("p", { class: "figures" }), notice = el("p", { class: "notice", role: "status" });
  let abort = null, tokens = [], shown = 0, block = null, frame = 0;

  const choose = (index) => {
    const { token, logprob, top } = tokens[index];
    const before = prompt.value + tokens.slice(0, index).map((each) => each.token).join("");
    panel.replaceChildren(el("p", {}, "Token ", el("code", { dir: "auto" }, visible(token)), `, probability ${percent(logprob)}. Go on with another:`),
      el("ul", {}, Object.entries(top).sort((a, b) => b[1] - a[1]).map(([other, value]) =>
        el("li", {}, el("button", { type: "button", disabled: other === token, onclick: () => goOn(before + other) },
          el("code", { dir: "auto" }, visible(other)), ` ${percent(value)}`), bar(value)))));
  };
  const goOn = (text) => {
    output.focus({ preventScroll: true }); // the buttons of the alternatives go
    run(text);
  };
  const tokenButton = ({ token, logprob }, index) => el("button", { type: "button", class: `token p${level(logprob)}`, title: percent(logprob),
    onclick: () => choose(index) }, clipped(token).replaceAll("\n", "⏎\n") || "∅");
  // All that came since the last frame.
  const draw = () => {
    frame = 0;
    for (; shown < tokens.length; shown += 1) {
      const { token } = tokens[shown], count = block?.children.length ?? MOST_BLOCK_TOKENS;
      const isLineStart = shown > 0 && tokens[shown - 1].token.endsWith("\n");
      if (isLineStart || count >= MOST_BLOCK_TOKENS || (count >= BLOCK_TOKENS && /^\s/.test(token))) output.append(block = el("div", { class: "line" }));
      block.append(tokenButton(tokens[shown], shown));
    }
  };
  const body = (text) => ({ ...controls.values(), prompt: text, stream: true, logprobs: NUM_ALTERNATIVES });
  async function run(text) {
    if (!controls.values().model) { figures.replaceChildren(alertLine("No model is listed yet.")); return; }
    abort?.abort();
    const mine = abort = new AbortController();
    cancelAnimationFrame(frame);
    [tokens, shown, block, frame] = [[], 0, null, 0];
    prompt.value = text;
    output.replaceChildren();
    panel.replaceChildren(HINT);
    figures.replaceChildren("waiting for the first token…");
    stopping.disabled = false;
    const started = performance.now();
    let first = null, failure = null;
    try {
      for await (const event of events(await call("v1/completions", { body: body(text), signal: mine.signal }), { isAnswer: true })) {
        const logprobs = event.choices?.[0]?.logprobs;
        if (!logprobs) continue;
        first ??= performance.now();
        logprobs.tokens.forEach((token, place) => tokens.push({ token, logprob: logprobs.token_logprobs[place], top: logprobs.top_logprobs?.[place] ?? {} }));
        frame ||= requestAnimationFrame(draw);
      }
    } catch (error) { failure = error; }
    if (mine !== abort) return;
    draw();
    stopping.disabled = true;
    figures.replaceChildren(summary(tokens, first, started), failure?.name === "AbortError" ? " · stopped" : "");
    if (failure && failure.name !== "AbortError") figures.append(alertLine(failure.message));
  }
  const stopping = button("Stop", () => { abort?.abort(); prompt.focus(); }, { disabled: true });
  view.append(el("h1", {}, "Tokens"), controls.element,
    el("details", { class: "more" }, el("summary", {}, "More sampling settings"), controls.more), notice, el("div", { class: "composer" }, prompt.chip, prompt.input),
    el("div", { class: "row" },
      button("Complete", () => run(prompt.value), { class: "primary" }), stopping,
      exportButtons("v1/completions", () => [body(prompt.value)])),
    output, el("p", { class: "legend" }, "Probability: ", ["under 10 %", "under 50 %", "under 90 %", "90 % and over"].map((label, index) =>
      el("span", { class: `token p${index}` }, label))),
    panel, figures);
  controls.load(notice);
  return { enter() { controls.load(notice); }, renew() { controls.load(notice); } };
}

function summary(tokens, first, started) {
  if (!tokens.length) return "No token came.";
  const mean = tokens.reduce((sum, each) => sum + each.logprob, 0) / tokens.length;
  const elapsed = (performance.now() - first) / 1000;
  return `${tokens.length} token${tokens.length === 1 ? "" : "s"} · perplexity ${number(Math.exp(-mean), 2)} · first after ${seconds((first - started) / 1000)}` +
    (tokens.length > 1 && elapsed > 0 ? ` · ${number((tokens.length - 1) / elapsed, 1)} tokens/s` : "");
}

function level(logprob) {
  const share = Math.exp(logprob);
  return share < 0.1 ? 0 : share < 0.5 ? 1 : share < 0.9 ? 2 : 3;
}

function percent(logprob) { return `${number(Math.exp(logprob) * 100, 1)} %`; }

function bar(logprob) { return el("meter", { min: 0, max: 1, value: Math.exp(logprob), "aria-hidden": "true" }); }

function clipped(token) { return token.length > SHOWN_CHARS ? `${token.slice(0, SHOWN_CHARS)}…` : token; }

function visible(token) { return plain(clipped(token)).replaceAll("\n", "⏎").replaceAll(" ", "·") || "(empty)"; }
