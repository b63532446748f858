// The next request as a command line and as a program.

import { url } from "./api.js";
import { button, showDialog } from "./elements.js";

const CUT = "…(cut)";
const SHOWN_TEXT = 2000; // characters of each text

// Buttons that show `bodies()`, requests to `path`, one for each pane; a body that cannot be made shows why.
export function exportButtons(path, bodies) {
  const show = (title, write) => {
    let found;
    try { found = bodies(); } catch (error) { showDialog(title, error.message); return; }
    const written = (each) => each.map((body) => write(path, body)).join("\n\n");
    const short = found.map(shortened);
    const note = JSON.stringify(short).includes(CUT) ? "Long texts are cut here, but copied whole." : "";
    showDialog(title, written(short), () => written(found), note);
  };
  return [button("curl", () => show("The next request as curl", asCurl)), button("Python", () => show("The next request in Python", asPython))];
}

// A JSON value whose long texts are cut.
function shortened(value) {
  if (typeof value === "string") return value.length > SHOWN_TEXT ? value.slice(0, SHOWN_TEXT) + CUT : value;
  if (Array.isArray(value)) return value.map(shortened);
  return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, each]) => [name, shortened(each)])) : value;
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
