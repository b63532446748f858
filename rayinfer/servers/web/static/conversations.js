// Conversations, kept in this browser only.

const STORE = "rayinfer.conversations";
const MOST = 50;
const MAX_STORED_CHARS = 200_000; // of one message: storage holds some millions in all

export function emptyConversation() {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), title: "", system: "", messages: [], changed: Date.now() };
}

export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user")?.content ?? "";
  return first.replaceAll(/\s+/g, " ").slice(0, 60) || "New chat";
}

export function storedConversations() {
  try {
    const found = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => Array.isArray(each?.messages)).map((each) => ({ ...emptyConversation(), ...each })) : [];
  } catch { return []; }
}

export function keepConversation(conversation) {
  const others = storedConversations().filter((each) => each.id !== conversation.id);
  const messages = conversation.messages.map((message) => ({ ...message, content: message.content.slice(0, MAX_STORED_CHARS) }));
  write(conversation.messages.length ? [{ ...conversation, messages, changed: Date.now() }, ...others] : others);
}

export function deleteConversation(id) { write(storedConversations().filter((each) => each.id !== id)); }

function write(conversations) {
  for (let kept = conversations.slice(0, MOST); ; kept = kept.slice(0, -1)) {
    try { localStorage.setItem(STORE, JSON.stringify(kept)); return; } catch { if (kept.length <= 1) return; /* full or forbidden */ }
  }
}
