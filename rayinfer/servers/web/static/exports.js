// The next request as a command line and as a program.

import { url } from "./api.js";
import { button, showDialog } from "./elements.js";

// Buttons that show `bodies()`, requests to `path`, one for each pane; a body that cannot be made shows why.
export function exportButtons(path, bodies) {
  const show = (title, write) => showDialog(title, written(bodies, (body) => write(path, body)));
  return [button("curl", () => show("The next request as curl", asCurl)), button("Python", () => show("The next request in Python", asPython))];
}

function written(bodies, write) {
  try { return bodies().map(write).join("\n\n"); } catch (error) { return error.message; }
}

export function asCurl(path, body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -N ${url(path)} \\\n  -H 'Content-Type: application/json' \\\n  -H "Authorization: Bearer $RAYINFER_API_KEY" \\\n  -d '${quoted}'`;
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

// Parameters that the client has no argument for.
const EXTRA = new Set(["top_k", "min_p", "repetition_penalty"]);

export function asPython(path, body) {
  const isChat = path.endsWith("chat/completions");
  const { stream, stream_options, ...rest } = body;
  const own = Object.entries(rest).filter(([name]) => !EXTRA.has(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => EXTRA.has(name)));
  const options = own.map(([name, value]) => `    ${name}=${literal(value)},\n`).join("") +
    (Object.keys(extra).length ? `    extra_body=${literal(extra)},\n` : "");
  return "import os\n\nfrom openai import OpenAI\n\n" +
    `client = OpenAI(base_url=${JSON.stringify(String(url("v1")))}, api_key=os.environ.get("RAYINFER_API_KEY", "none"))\n` +
    `stream = client.${isChat ? "chat.completions" : "completions"}.create(\n${options}    stream=True,\n)\n` +
    `for chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].${isChat ? 'delta.content or ""' : "text"}, end="", flush=True)\n`;
}
