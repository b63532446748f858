// Images for models that read them.

import { readJson } from "./api.js";
import { el, field } from "./elements.js";

const TOP = 5;

export function imagePicker() {
  const input = el("input", { type: "file", accept: "image/png,image/jpeg,image/webp" });
  const preview = el("img", { class: "preview", alt: "", hidden: true });
  const show = () => {
    if (preview.src) URL.revokeObjectURL(preview.src);
    preview.hidden = !input.files.length;
    if (input.files.length) preview.src = URL.createObjectURL(input.files[0]);
  };
  input.addEventListener("change", show);
  return {
    element: el("div", { class: "row picker" }, field("Image", input), preview),
    has: () => input.files.length > 0,
    take: () => input.files[0] ?? null,
  };
}

export async function classify(model, file, signal) {
  const { data } = await readJson("v1/images/classify", { body: { model, image: await dataUrl(file), top_k: TOP }, signal });
  return data[0].predictions;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The image could not be read."));
    reader.readAsDataURL(file);
  });
}
