// The paths of the service, from its own OpenAPI document.

import { call, hasKey, readJson } from "./api.js";
import { alertLine, el, setText } from "./elements.js";
import { inSlices } from "./slices.js";

const OPERATIONS_A_SLICE = 15;

export function docsView(view) {
  const search = el("input", { type: "search", "aria-label": "Filter paths", placeholder: "filter", maxlength: 1000 });
  const list = el("div", { class: "operations" }), none = el("p", { class: "muted", role: "status" });
  view.append(el("h1", {}, "API"), el("p", { class: "figures" }, "From ", linkTo("openapi.json", "openapi.json"), "; see also ",
    linkTo("metrics", "metrics"), " and ", linkTo("ready", "readiness"), "."), search, none, list);
  const shown = [];
  const filter = () => {
    const wanted = search.value.toLowerCase();
    for (const { element, text } of shown) element.hidden = !text.includes(wanted);
    setText(none, shown.length && shown.every(({ element }) => element.hidden) ? "No path has that in its name or description." : "");
  };
  search.addEventListener("input", filter);
  let isOver = false;
  const load = async () => {
    const document_ = await readJson("openapi.json");
    const operations = Object.entries(document_.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })));
    await inSlices(operations, OPERATIONS_A_SLICE, (each) => {
      const element = operationElement(each, document_), text = `${each.path} ${each.operation.description ?? ""}`.toLowerCase();
      element.hidden = !text.includes(search.value.toLowerCase());
      shown.push({ element, text });
      list.append(element);
    }, () => !isOver);
    filter();
  };
  load().catch((error) => list.append(alertLine(error.message)));
  return { leave() { isOver = true; } };
}

// A link's own request carries no key: with one, the document is fetched and shown in a tab as text.
function linkTo(path, text) {
  const link = el("a", { href: path, onclick: async (click) => {
    if (!hasKey()) return;
    click.preventDefault();
    try {
      const fetched = new Blob([await (await call(path)).text()], { type: "text/plain;charset=utf-8" });
      open(URL.createObjectURL(fetched), "_blank");
    } catch (error) { link.after(alertLine(error.message)); }
  } }, text);
  return link;
}

function operationElement({ path, method, operation }, document_) {
  const about = aboutOf(operation);
  const details = el("details", {}, el("summary", {}, el("span", { class: `method ${method}` }, method), " ", el("code", {}, path), " ",
    el("span", { class: "muted" }, about)));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const content = operation.requestBody?.content ?? {};
    const parameters = operation.parameters ?? [];
    details.append(
      parameters.length ? el("ul", {}, parameters.map((each) => el("li", {}, el("code", {}, each.name), ` in ${each.in}. ${each.description ?? ""}`))) : "",
      ...Object.entries(content).map(([type, body]) => el("div", {}, el("p", {}, "Body ", el("code", {}, type)), el("pre", { tabindex: "0" }, outline(body.schema, document_)))),
      el("p", {}, "Answers: ", Object.entries(operation.responses ?? {}).map(([status, each]) => `${status} ${each.description ?? ""}`).join("; ")));
  });
  return details;
}

// The first line of a description, without the path that it may begin with.
function aboutOf({ description, summary }) {
  const text = (description ?? summary ?? "").split("\n")[0].replace(/^[A-Z]+( and [A-Z]+)? \/[^\s]*?[:.,]?(\s+|$)/, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// One line a field: its name, type and description; unions and references are followed once.
function outline(schema, document_) {
  const found = resolve(schema, document_);
  const choices = found.anyOf ?? found.oneOf;
  if (choices && !found.properties) return choices.map((each) => outline(each, document_)).join("\n— or —\n");
  const lines = Object.entries(found.properties ?? {}).map(([name, field]) =>
    `${name}${found.required?.includes(name) ? " (required)" : ""}: ${typeName(field, document_)}${field.description ? ` – ${field.description}` : ""}`);
  return lines.join("\n") || typeName(found, document_);
}

function typeName(schema, document_) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((each) => typeName(each, document_)).join(" | ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `array of ${schema.items ? typeName(schema.items, document_) : "anything"}`;
  return String(schema.type ?? "anything");
}

function resolve(schema, document_) {
  if (!schema?.$ref) return schema ?? {};
  return schema.$ref.slice(2).split("/").reduce((node, name) => node?.[name], document_) ?? {};
}
