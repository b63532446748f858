// An answer as it comes: the parts of its message that grow, and its figures.

import { el, number, seconds, setText } from "./elements.js";
import { reasoningElement } from "./messages.js";
import { growingText } from "./text.js";
import { addCallDeltas, toolCallsElement } from "./tools.js";

export function answerElements(article, message) {
  const element = article.querySelector(".text"), content = growingText(element);
  let thought = null, calls = null;
  return {
    // Takes a delta; returns whether it holds anything to show.
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

// Time to the first token, tokens and their rate, while an answer comes.
export function progressOf(figures) {
  const started = performance.now();
  const text = el("span", {}, "waiting for the first token…"), link = el("a", { hidden: true }, "trace");
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
      setText(text, [first && `first token after ${seconds((first - started) / 1000)}`, tokens && `${tokens} token${tokens === 1 ? "" : "s"}`, rate,
        usage && `${usage.prompt_tokens} in the prompt`, usage?.prompt_tokens_details?.cached_tokens && `${usage.prompt_tokens_details.cached_tokens} of them cached`,
        this.note].filter(Boolean).join(" · "));
    },
  };
}
