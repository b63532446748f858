import { call, setKey } from "./api.js";
import { alertLine, button, el } from "./elements.js";
import { afterFrame } from "./slices.js";

// Each view's modules come when it is first shown, or when the pointer or the focus comes to its link.
const views = {
  chat: async () => (await import("./chat.js")).chatView,
  tokens: async () => (await import("./tokens.js")).tokensView,
  live: async () => (await import("./live.js")).liveView,
  requests: async () => (await import("./requests.js")).requestsView,
  docs: async () => (await import("./docs.js")).docsView,
};
const KEPT = ["chat", "tokens"]; // with what was typed and chosen, and the answer that comes
const READY_MS = 10_000, RETRY_MS = 1000;
const main = document.getElementById("view");
const kept = new Map();
let current = {}, numShown = 0;

async function show() {
  const shown = numShown += 1;
  current.leave?.();
  current = {};
  const [name, argument] = location.hash.slice(1).split("/", 2);
  const known = Object.hasOwn(views, name) ? name : location.pathname.endsWith("/docs") ? "docs" : "chat";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${known}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${document.querySelector("nav a[aria-current]").textContent} – rayinfer`;
  const before = kept.get(known), element = before?.element ?? el("div", { class: "view" });
  main.replaceChildren(element);
  if (before) {
    current = before;
    before.enter();
    return;
  }
  let view;
  try { view = await views[known](); } catch {
    if (shown === numShown) element.append(alertLine("This view could not be loaded: the service is unreachable."), el("div", { class: "row" }, button("Try again", show)));
    return;
  }
  if (shown !== numShown) return; // another one was chosen meanwhile
  current = { element, ...view(element, decoded(argument ?? "")) };
  if (KEPT.includes(known)) kept.set(known, current);
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
for (const kind of ["pointerover", "focusin"]) {
  document.querySelector("nav").addEventListener(kind, ({ target }) => {
    views[target.getAttribute("href")?.slice(1)]?.().catch(() => {}); // it is tried again when it is shown
  });
}
window.addEventListener("hashchange", async () => {
  show();
  await afterFrame(); // a focus lays the page out
  main.focus({ preventScroll: true });
});

const root = document.documentElement; // theme.js has set what was chosen before
document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* this browser keeps nothing */ }
});
const key = document.getElementById("key");
document.getElementById("key-form").addEventListener("submit", (submit) => submit.preventDefault());
key.addEventListener("change", () => {
  setKey(key.value);
  for (const view of kept.values()) view.renew?.();
  if (![...kept.values()].includes(current)) show();
});

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
