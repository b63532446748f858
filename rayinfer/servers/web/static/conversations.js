// Conversations, kept in this browser only: an index, and an entry for each, so that an answer writes its own alone.

const INDEX = "rayinfer.conversation-index"; // ids and titles, the latest first
const ENTRY = "rayinfer.conversation."; // and the id
const MOST = 50;
const MAX_STORED_CHARS = 200_000; // of one text: storage holds some millions in all
const MAX_IMAGE_CHARS = 1_000_000; // of a conversation's images, the latest first

export function emptyConversation() {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), system: "", messages: [] };
}

export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  return (first?.content || first?.images?.[0].name || "").slice(0, 200).replaceAll(/\s+/g, " ").slice(0, 60) || "New chat";
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

// Stores a conversation; the oldest ones make room where there is none, with their images first.
export function keepConversation(conversation) {
  const { id } = conversation, others = listedConversations().filter((each) => each.id !== id);
  if (!conversation.messages.length) { deleteConversation(id); return; }
  for (const each of others.splice(MOST - 1)) remove(each.id);
  const messages = conversation.messages.filter((each) => !isEmptyAnswer(each)).map(storable);
  let kept = { ...conversation, system: bounded(conversation.system), messages: withImages(messages, MAX_IMAGE_CHARS) };
  while (!write(ENTRY + id, JSON.stringify(kept))) {
    const oldest = others.findLast((each) => each.hasImages);
    if (oldest) {
      const found = storedConversation(oldest.id);
      oldest.hasImages = false;
      if (found) write(ENTRY + oldest.id, JSON.stringify({ ...found, messages: withImages(found.messages, 0) }));
    } else if (hasImages(kept)) kept = { ...kept, messages: withImages(kept.messages, 0) };
    else if (others.length) remove(others.pop().id);
    else return; // full, or forbidden
  }
  write(INDEX, JSON.stringify([{ id, title: titleOf(conversation), ...(hasImages(kept) && { hasImages: true }) }, ...others]));
}

export function deleteConversation(id) {
  remove(id);
  write(INDEX, JSON.stringify(listedConversations().filter((each) => each.id !== id)));
}

function hasImages(conversation) { return conversation.messages.some((message) => message.images?.some((each) => each.url)); }

// Messages that keep the data of their latest images, up to a number of characters, and the names of the others.
function withImages(messages, most) {
  let left = most;
  return messages.map((message) => message).reverse().map((message) => {
    if (!message.images) return message;
    return { ...message, images: message.images.map((each) => {
      left -= each.url?.length ?? 0;
      return left >= 0 ? each : { name: each.name };
    }) };
  }).reverse();
}

// An answer of which no token has come yet.
function isEmptyAnswer(message) { return message.role === "assistant" && !message.content && !message.reasoning && !message.tool_calls; }

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
