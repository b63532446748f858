// The next request as a command line and as a program. Loaded when one is wanted.

import { url } from "./api.js";
import { plain, showDialog } from "./elements.js";

const CUT = "…(cut)";
const SHOWN_TEXT = 2000; // characters of each text
const ARGUMENT_CHARS = 30_000; // of a command; systems take 128 KiB, and a character has up to four

const FILE = Symbol.for("file"); // of an `image_url`: the name of the file to read in place of its data
const FORMS = { curl: ["The next request as curl", asCurl], Python: ["The next request in Python", asPython] };

// Shows `bodies()`, requests to `path`, one for each pane; a body that cannot be made shows why.
export function showExport(form, path, bodies) {
  const [title, write] = FORMS[form];
  let found;
  try { found = bodies(); } catch (error) { showDialog(title, error.message); return; }
  const written = (each) => each.map((body) => write(path, body)).join("\n\n");
  const short = found.map(shortened);
  const note = [JSON.stringify(short).includes(CUT) && "Long texts are cut here, but copied whole.",
    found.some((each) => filesIn(each).names.length) && "Images are read from files of their names."].filter(Boolean).join(" ");
  showDialog(title, written(short), () => written(found), note);
}

// A JSON value whose long texts are cut.
function shortened(value) {
  if (value?.[FILE]) return value;
  if (typeof value === "string") return value.length > SHOWN_TEXT ? value.slice(0, SHOWN_TEXT) + CUT : value;
  if (Array.isArray(value)) return value.map(shortened);
  return value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, each]) => [name, shortened(each)])) : value;
}

function asCurl(path, body) {
  const { texts, names } = filesIn(body), [first, ...rest] = texts.map(quoted);
  const data = names.map((name, index) => `  base64 < ${quoted(name)} | tr -d '\\n'\n  printf %s ${rest[index]}\n`).join("");
  const piped = data ? `{\n  printf %s ${first}\n${data}} | ` : first.length > ARGUMENT_CHARS ? `printf %s ${first} | ` : "";
  return `${piped}curl -N ${url(path)} \\\n  -H 'Content-Type: application/json' \\\n  -H "Authorization: Bearer $RAYINFER_API_KEY" \\\n  -d ${piped ? "@-" : first}`;
}

function quoted(text) { return `'${text.replaceAll("'", "'\\''")}'`; }

// A body's JSON as texts, and the names of files whose base64 belongs between them.
function filesIn(body) {
  const mark = `${Math.random()}${Math.random()}`, names = []; // in no text
  const text = plain(JSON.stringify(body, (_, value) => {
    if (!value?.[FILE]) return value;
    names.push(value[FILE]);
    return { url: headOf(value.url) + mark };
  }, 2));
  return { texts: text.split(mark), names };
}

function headOf(url) { return url.slice(0, url.indexOf(",") + 1); }

// A JSON value in Python's spelling.
function literal(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return plain(JSON.stringify(value));
  if (value[FILE]) return `{"url": ${JSON.stringify(headOf(value.url))} + base64_of(${JSON.stringify(value[FILE])})}`;
  return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
}

// Parameters that the client has no argument for.
const EXTRA = new Set(["top_k", "min_p", "repetition_penalty"]);

function asPython(path, body) {
  const isChat = path.endsWith("chat/completions");
  const { stream, stream_options, ...rest } = body;
  const own = Object.entries(rest).filter(([name]) => !EXTRA.has(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => EXTRA.has(name)));
  const options = own.map(([name, value]) => `    ${name}=${literal(value)},\n`).join("") +
    (Object.keys(extra).length ? `    extra_body=${literal(extra)},\n` : "");
  const reader = filesIn(body).names.length ? "\ndef base64_of(path):\n    with open(path, \"rb\") as file:\n        return base64.b64encode(file.read()).decode()\n\n\n" : "";
  return `${reader && "import base64\n"}import os\n\nfrom openai import OpenAI\n\n${reader}` +
    `client = OpenAI(base_url=${JSON.stringify(String(url("v1")))}, api_key=os.environ.get("RAYINFER_API_KEY", "none"))\n` +
    `stream = client.${isChat ? "chat.completions" : "completions"}.create(\n${options}    stream=True,\n)\n` +
    `for chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].${isChat ? 'delta.content or ""' : "text"}, end="", flush=True)\n`;
}
