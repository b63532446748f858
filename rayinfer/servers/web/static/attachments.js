// Images of a message: chosen, dropped or pasted, shown small, and taken away again. Loaded where a model reads images.

import { alertLine, button, el } from "./elements.js";
import { ACCEPTED, limitsOf, readImage, refusalOf } from "./image_files.js";

// Images that are going with a message to `model()`; files are dropped and pasted anywhere in `target`.
// `focus` takes the focus back.
export function attachments({ target, focus, model, images = [] }) {
  let isOn = true, numReads = 0, reading = Promise.resolve();
  const input = el("input", { type: "file", accept: ACCEPTED, multiple: true, hidden: true, "aria-label": "Image files" });
  const list = el("ul", { class: "shots", "aria-label": "Images to send" }), errors = el("div");
  const element = el("div", { class: "attachments" }, errors, list, input), choose = button("Add images", () => input.click(), { title: "Or drop or paste them" });
  const show = () => {
    list.hidden = !images.length;
    list.replaceChildren(...images.map((image, index) => el("li", {}, shot(image), button("Remove", () => {
      images.splice(index, 1);
      show();
      (list.children[Math.min(index, images.length - 1)]?.querySelector("button") ?? { focus }).focus();
    }, { class: "small", "aria-label": `Remove ${image.name}` }))));
  };
  const read = async (files) => {
    const found = limitsOf(model()), refused = [];
    for (const [index, file] of files.entries()) {
      if (images.length >= found.max_images) {
        refused.push(`A request may have ${found.max_images} images: ${files.length - index} more ${files.length - index > 1 ? "are" : "is"} not added.`);
        break;
      }
      try { images.push(await readImage(file, found)); } catch (error) { refused.push(error.message); }
    }
    errors.replaceChildren(...refused.slice(0, found.max_images + 1).map(alertLine));
    numReads -= 1;
    show();
  };
  const add = (files) => {
    const added = [...files]; // now: the browser empties its list after the event
    numReads += 1;
    reading = reading.then(() => read(added));
  };
  const hasFiles = (event) => isOn && event.dataTransfer?.types.includes("Files");
  input.addEventListener("change", () => { add(input.files); input.value = ""; focus(); });
  target.addEventListener("paste", (event) => {
    const { files } = event.clipboardData;
    if (!isOn || !files.length || event.clipboardData.getData("text/plain")) return; // of a text with its picture the text is meant
    event.preventDefault();
    event.stopPropagation();
    add(files);
  });
  target.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    target.classList.add("drop");
  });
  target.addEventListener("dragleave", (event) => { if (!target.contains(event.relatedTarget)) target.classList.remove("drop"); });
  target.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    for (const each of [target, target.closest(".drop")]) each?.classList.remove("drop");
    add(event.dataTransfer.files);
  });
  show();
  return {
    element, choose,
    images: () => isOn ? [...images] : [],
    isReading: () => numReads > 0,
    settled: () => reading,
    // Says why the images cannot go beside those of earlier messages; empty where they can.
    refusal: (earlier, to = model()) => refusalOf([...earlier, ...images], limitsOf(to)),
    clear() { images = []; errors.replaceChildren(); show(); },
    // Hides what a model that reads text only has no use for; it is kept.
    turn(on) { isOn = on; element.hidden = choose.hidden = !on; },
  };
}

// Images of a message that was sent.
export function shots(images) { return el("ul", { class: "shots", "aria-label": "Images" }, images.map((each) => el("li", {}, shot(each)))); }

function shot(image) {
  const name = el("figcaption", { title: image.name }, el("bdi", {}, image.name));
  if (!image.url) return el("figure", {}, el("p", { class: "muted" }, "Not kept by this browser, and not sent again."), name);
  const picture = el("img", { alt: "", width: image.width, height: image.height, decoding: "async" });
  const address = URL.createObjectURL(blobOf(image.url)), done = () => URL.revokeObjectURL(address);
  picture.addEventListener("load", done);
  picture.addEventListener("error", done);
  picture.src = address;
  return el("figure", {}, picture, name);
}

// The policy lets the page show what it holds itself, by blob: addresses alone.
function blobOf(url) {
  const [head, data] = url.split(",", 2), type = ACCEPTED.split(",").find((each) => head === `data:${each};base64`);
  try { return new Blob([Uint8Array.from(atob(data), (each) => each.charCodeAt(0))], { type }); } catch { return new Blob(); }
}
