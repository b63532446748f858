// Samples of the live view. Tabs of one browser share one stream, where the browser can: it opens six connections at most.

import { call, events, keyDigest } from "./api.js";

const RETRY_MS = 1000;
const REFUSED_MS = 10_000; // of a key that may not, say: another key is asked for at once; the longest that is waited

// Calls `onSample` with each sample and `onTrouble` with why there is none, until aborted.
export async function followLive(onSample, onTrouble, signal) {
  const digest = await keyDigest();
  if (digest === null || !navigator.locks) { await read(onSample, onTrouble, signal); return; }
  const name = `rayinfer-live ${document.baseURI} ${digest}`;
  const channel = new BroadcastChannel(name);
  const take = ({ sample, trouble }) => sample ? onSample(sample) : onTrouble(trouble);
  channel.onmessage = ({ data }) => take(data);
  const share = (message) => { take(message); channel.postMessage(message); };
  try {
    await navigator.locks.request(name, { signal }, async () => {
      channel.onmessage = null; // from here on this tab reads for the others
      await read((sample) => share({ sample }), (trouble) => share({ trouble }), signal);
    });
  } catch (error) { if (error.name !== "AbortError") throw error; }
  channel.close();
}

async function read(onSample, onTrouble, signal) {
  while (!signal.aborted) {
    const began = performance.now();
    let pause = 0;
    try {
      for await (const sample of events(await call("live", { signal }))) onSample(sample);
      if (performance.now() - began < RETRY_MS) pause = RETRY_MS; // a proxy that passes no stream on, say
    } catch (error) {
      if (signal.aborted) return;
      const asked = Math.min((error.retryAfterS ?? 0) * 1000, REFUSED_MS); // too many live views are open, say
      pause = error.status < 500 ? REFUSED_MS : Math.max(asked, RETRY_MS);
      const again = error.status < 500 ? "" : ` Trying again in ${Math.round(pause / 1000)} s…`;
      onTrouble(error.status ? `${error.message}${again}` : "The service is unreachable; connecting again…");
    }
    if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
