// Long texts as blocks: a token lays out its own block only, and blocks out of sight are not laid out.

import { el, number } from "./elements.js";

const SHOWN_CHARS = 100_000; // of one text
const BLOCK_CHARS = 2000; // of a line, from which on a block ends at the next space
const MOST_BLOCK_CHARS = 2500; // where there is no space
const UNBROKEN_CHARS = 500; // of a block that may be broken nowhere, and is broken anywhere
const LONG_CHARS = 500;
const BREAK = /[\s\u0e00-\u0eff\u2e80-\uffff]/; // where a line may end: at spaces, and in scripts without them

// Text that is appended to `element`; `draw` shows what was added.
export function growingText(element) {
  let pending = "", length = 0, block = null, rest = null;
  const append = (part) => {
    if (!block) {
      block = { element: el("span", { class: "line" }), length: 0, isUnbroken: true };
      element.append(block.element);
    }
    block.element.append(part);
    block.length += part.length;
    block.isUnbroken &&= !BREAK.test(part);
    if (block.length < LONG_CHARS) return;
    block.element.classList.add("long");
    block.element.classList.toggle("unbroken", block.isUnbroken);
  };
  return {
    add(text) { pending += text; },
    draw() {
      let fitting = pending.slice(0, Math.max(0, SHOWN_CHARS - length));
      length += pending.length;
      pending = "";
      while (fitting) {
        const end = blockEnd(fitting, block?.length ?? 0, block?.isUnbroken ?? true);
        if (end > 0) append(fitting.slice(0, end));
        if (end < fitting.length || fitting[end - 1] === "\n") block = null;
        fitting = fitting.slice(end);
      }
      if (length <= SHOWN_CHARS) return;
      if (!rest) element.append(rest = document.createTextNode(""));
      rest.data = `… (${number(length - SHOWN_CHARS)} more characters are kept, not shown)`;
    },
  };
}

// A whole text in blocks.
export function longText(element, text) {
  const growing = growingText(element);
  growing.add(text);
  growing.draw();
  return element;
}

// Where the block that has some characters already ends in a text that follows: behind a line's end, or before a space.
function blockEnd(text, before, isUnbroken) {
  const unbroken = Math.max(0, UNBROKEN_CHARS - before);
  if (isUnbroken && text.length >= unbroken && !BREAK.test(text.slice(0, unbroken))) return unbroken;
  const newline = text.indexOf("\n") + 1, most = Math.max(0, MOST_BLOCK_CHARS - before);
  if (newline > 0 && newline <= most) return newline;
  if (text.length + before <= BLOCK_CHARS) return text.length;
  const first = Math.max(0, BLOCK_CHARS - before), space = text.slice(first, most).search(/\s|(?<=[。！？；])/);
  if (space >= 0) return first + space;
  if (text.length <= most) return text.length;
  return isHighSurrogate(text.charCodeAt(most - 1)) ? most - 1 : most;
}

function isHighSurrogate(code) { return code >= 0xd800 && code < 0xdc00; }
