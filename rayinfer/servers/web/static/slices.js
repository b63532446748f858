// Work in slices, so that no task holds up a frame or a key.

// Resolves after the next frame, in a task of its own: what is done there is laid out in the frame after.
export function afterFrame() {
  return new Promise((resolve) => {
    if (document.hidden) setTimeout(resolve); // a tab out of sight has no frames
    else requestAnimationFrame(() => setTimeout(resolve));
  });
}

// Calls `step` for each item, some in a slice, while `isWanted()`.
export async function inSlices(items, perSlice, step, isWanted = () => true) {
  for (let at = 0; at < items.length; at += perSlice) {
    if (at > 0) await afterFrame();
    if (!isWanted()) return;
    for (const item of items.slice(at, at + perSlice)) step(item);
  }
}
