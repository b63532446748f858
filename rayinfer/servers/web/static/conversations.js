// Conversations, kept in this browser only: an index, and an entry for each, so that an answer writes its own alone.

const INDEX = "rayinfer.conversation-index"; // ids and titles, the latest first
const ENTRY = "rayinfer.conversation."; // and the id
const MOST = 50;
const MAX_STORED_CHARS = 200_000; // of one text: storage holds some millions in all

export function emptyConversation() {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), system: "", messages: [] };
}

export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user")?.content ?? "";
  return first.slice(0, 200).replaceAll(/\s+/g, " ").slice(0, 60) || "New chat";
}

// Ids and titles of what is stored, the latest first.
export function listedConversations() {
  const found = read(INDEX);
  return Array.isArray(found) ? found.filter((each) => typeof each?.id === "string" && typeof each.title === "string") : [];
}

export function storedConversation(id) {
  const found = read(ENTRY + id);
  return Array.isArray(found?.messages) ? { ...emptyConversation(), ...found, id } : null;
}

// Stores a conversation; the oldest ones make room where there is none.
export function keepConversation(conversation) {
  const { id } = conversation, others = listedConversations().filter((each) => each.id !== id);
  if (!conversation.messages.length) { deleteConversation(id); return; }
  for (const each of others.splice(MOST - 1)) remove(each.id);
  const text = JSON.stringify({ ...conversation, system: bounded(conversation.system), messages: conversation.messages.map(storable) });
  while (!write(ENTRY + id, text)) {
    const oldest = others.pop();
    if (!oldest) return; // full, or forbidden
    remove(oldest.id);
  }
  write(INDEX, JSON.stringify([{ id, title: titleOf(conversation) }, ...others]));
}

export function deleteConversation(id) {
  remove(id);
  write(INDEX, JSON.stringify(listedConversations().filter((each) => each.id !== id)));
}

function storable(message) {
  if (message.content.length <= MAX_STORED_CHARS && !(message.reasoning?.length > MAX_STORED_CHARS)) return message;
  return { ...message, content: bounded(message.content), ...(message.reasoning && { reasoning: bounded(message.reasoning) }), isCut: true };
}

function bounded(text) { return text.slice(0, MAX_STORED_CHARS); }

function read(name) {
  try { return JSON.parse(localStorage.getItem(name) ?? "null"); } catch { return null; }
}

function write(name, text) {
  try { localStorage.setItem(name, text); return true; } catch { return false; }
}

function remove(id) {
  try { localStorage.removeItem(ENTRY + id); } catch { /* this browser keeps nothing */ }
}
