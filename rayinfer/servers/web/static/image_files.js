// Image files as the service takes them: PNG, JPEG and WebP of one frame, told by their bytes and checked before they are sent.

const SHOWN_NAME = 100; // characters
const MAX_BODY_BYTES = 64 * 2 ** 20; // of a request, whatever its images may have
const OTHER_BYTES = 2 ** 20; // of it, left for texts
// What a service has unless its models say otherwise (`image_limits`).
const LIMITS = { max_images: 8, max_bytes: 10 * 2 ** 20, max_pixels: 25e6, max_side: 8192 };

export const ACCEPTED = "image/png,image/jpeg,image/webp";

export function limitsOf(model) { return { ...LIMITS, ...model?.image_limits }; }

// Says why images cannot go with one request; empty where they can.
export function refusalOf(images, limits) {
  if (images.length > limits.max_images) return `A request may have ${limits.max_images} images, with those of earlier messages: these are ${images.length}. Start a new chat, or edit an earlier message.`;
  const size = images.reduce((sum, each) => sum + each.url.length, 0);
  return size > MAX_BODY_BYTES - OTHER_BYTES ? `A request may have ${megabytes(MAX_BODY_BYTES)} in all: the images are too large together.` : "";
}

// Reads a file into `{ name, url, width, height }` with a data: URL; throws an error that says why it cannot be sent.
export async function readImage(file, limits) {
  const name = file.name.slice(0, SHOWN_NAME) || "image", fail = (text) => { throw new Error(`${name} ${text}`); };
  if (file.size > limits.max_bytes) fail(`has ${megabytes(file.size)}: an image may have ${megabytes(limits.max_bytes)}.`);
  let bytes;
  try { bytes = new Uint8Array(await file.arrayBuffer()); } catch { fail("could not be read."); }
  const type = typeOf(bytes);
  if (!type) fail("is no PNG, JPEG or WebP image.");
  const header = headerOf(bytes, type);
  if (!header?.width || !header.height) fail("is broken: its header cannot be read.");
  const { width, height, isAnimated } = header;
  if (Math.max(width, height) > limits.max_side) fail(`has ${width} × ${height} pixels: an image may have ${limits.max_side} a side.`);
  if (width * height > limits.max_pixels) fail(`has ${width} × ${height} pixels: an image may have ${limits.max_pixels / 1e6} million.`);
  if (isAnimated) fail("has several frames: an image may have one.");
  const blob = new Blob([bytes], { type });
  try {
    const bitmap = await createImageBitmap(blob), size = { width: bitmap.width, height: bitmap.height }; // upright
    bitmap.close();
    return { name, url: await dataUrl(blob), ...size };
  } catch { return fail("is broken: it cannot be decoded."); }
}

function typeOf(bytes) {
  if (startsWith(bytes, 0, "\x89PNG\r\n\x1a\n")) return "image/png";
  if (bytes[0] === 0xff && bytes[1] === 0xd8 && bytes[2] === 0xff) return "image/jpeg";
  return startsWith(bytes, 0, "RIFF") && startsWith(bytes, 8, "WEBP") ? "image/webp" : null;
}

// Size and frames by a file's header; null for a broken one. What is beyond the end throws, and is broken too.
function headerOf(bytes, type) {
  const view = new DataView(bytes.buffer);
  try { return { "image/png": pngHeader, "image/jpeg": jpegHeader, "image/webp": webpHeader }[type](view, bytes); } catch { return null; }
}

function pngHeader(view, bytes) {
  if (!startsWith(bytes, 12, "IHDR")) return null;
  let isAnimated = false;
  for (let at = 8; at + 8 <= bytes.length && !startsWith(bytes, at + 4, "IDAT"); at += 12 + view.getUint32(at)) isAnimated ||= startsWith(bytes, at + 4, "acTL");
  return { width: view.getUint32(16), height: view.getUint32(20), isAnimated };
}

function jpegHeader(view) {
  for (let at = 2; view.getUint8(at) === 0xff;) {
    const marker = view.getUint8(at + 1);
    if (marker === 0xff) at += 1; // a byte to fill
    else if (marker === 1 || (marker >= 0xd0 && marker <= 0xd8)) at += 2;
    else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) return { width: view.getUint16(at + 7), height: view.getUint16(at + 5) };
    else if (marker === 0xda) return null;
    else at += 2 + Math.max(2, view.getUint16(at + 2));
  }
  return null;
}

function webpHeader(view, bytes) {
  if (startsWith(bytes, 12, "VP8X")) {
    const size = (at) => view.getUint16(at, true) + view.getUint8(at + 2) * 65536 + 1;
    return { width: size(24), height: size(27), isAnimated: Boolean(view.getUint8(20) & 2) };
  }
  if (startsWith(bytes, 12, "VP8L")) {
    const bits = view.getUint32(21, true);
    return { width: (bits & 0x3fff) + 1, height: ((bits >> 14) & 0x3fff) + 1 };
  }
  if (!startsWith(bytes, 12, "VP8 ")) return null;
  return { width: view.getUint16(26, true) & 0x3fff, height: view.getUint16(28, true) & 0x3fff };
}

function startsWith(bytes, at, text) { return [...text].every((each, index) => bytes[at + index] === each.charCodeAt(0)); }

function megabytes(size) { return `${+(size / 2 ** 20).toFixed(1)} MiB`; }

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
