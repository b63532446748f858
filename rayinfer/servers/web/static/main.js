import { call, setKey } from "./api.js";
import { chatView } from "./chat.js";
import { docsView } from "./docs.js";
import { liveView } from "./live.js";
import { requestsView } from "./requests.js";
import { tokensView } from "./tokens.js";

const views = { chat: chatView, tokens: tokensView, live: liveView, requests: requestsView, docs: docsView };
const READY_MS = 10_000, RETRY_MS = 1000;
const main = document.getElementById("view");
let leave = () => {};

function show() {
  leave();
  const [name, argument] = location.hash.slice(1).split("/", 2);
  const known = Object.hasOwn(views, name) ? name : location.pathname.endsWith("/docs") ? "docs" : "chat";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${known}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren();
  leave = views[known](main, decoded(argument ?? "")) ?? (() => {});
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

// With a <base>, "#chat" would lead to the base's path: views change in place instead.
document.addEventListener("click", (click) => {
  const link = click.target.closest?.("a[href^='#']");
  if (!link || click.ctrlKey || click.metaKey || click.shiftKey) return;
  click.preventDefault();
  location.hash = link.getAttribute("href");
});
window.addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); });

const root = document.documentElement;
let saved = null;
try { saved = localStorage.getItem("theme"); } catch { /* this browser keeps nothing */ }
if (saved) root.dataset.theme = saved;
document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* nor this */ }
});
const key = document.getElementById("key");
document.getElementById("key-form").addEventListener("submit", (submit) => submit.preventDefault());
key.addEventListener("change", () => { setKey(key.value); show(); });

const ready = document.getElementById("ready");
async function watchReadiness() {
  let text, kind;
  try {
    await call("ready");
    [text, kind] = ["ready", "good"];
  } catch (error) {
    [text, kind] = error.status === 503 ? ["not ready", "warn"] : ["unreachable", "bad"];
  }
  if (ready.textContent !== text) ready.textContent = text;
  ready.className = kind;
  setTimeout(watchReadiness, kind === "good" ? READY_MS : RETRY_MS);
}

setTimeout(show); // a task of its own, after the modules' own
watchReadiness();
