// Figures of what came between two samples of a model.

import { number } from "./elements.js";

export function sum(values) { return values.reduce((total, value) => total + value, 0); }

// What the tiles and charts show, of a sample and of one some seconds before.
export function figuresBetween(before, { time, model }) {
  const span = time - before.time;
  // A router that has started again counts from zero.
  const rate = (name) => span > 0 ? Math.max(0, model[name] - before.model[name]) / span : null;
  return {
    out: rate("generation_tokens"), in: rate("prompt_tokens"),
    ttft: percentiles(model.first_token, before.model.first_token), itl: percentiles(model.inter_token, before.model.inter_token),
    hits: share(model.cached_prompt_tokens - before.model.cached_prompt_tokens, model.prompt_tokens - before.model.prompt_tokens),
    accepted: acceptedShare(model.engines, before.model.engines),
  };
}

function share(part, whole) { return whole > 0 ? `${number(100 * part / whole)} %` : "–"; }

// Estimates of the 50th and the 95th percentile of what came between two samples, from buckets.
function percentiles(now, before) {
  const counts = now.counts.map((count, index) => Math.max(0, count - (before.counts[index] ?? 0)));
  const total = sum(counts);
  if (total <= 0) return [null, null];
  return [0.5, 0.95].map((part) => {
    let below = 0;
    for (let index = 0; index < counts.length; index += 1) {
      if (below + counts[index] >= part * total) return interpolate(now.bounds, counts, index, part * total - below);
      below += counts[index];
    }
    return null;
  });
}

function interpolate(bounds, counts, index, rest) {
  const low = index === 0 ? 0 : bounds[index - 1];
  if (index >= bounds.length) return low;
  return low + (bounds[index] - low) * (counts[index] ? rest / counts[index] : 1);
}

// Of draft tokens, how many were accepted by the engines that are there still.
function acceptedShare(now, before) {
  let drafted = 0, accepted = 0;
  for (const [engine, stats] of Object.entries(now)) {
    const known = before[engine] ?? {};
    drafted += Math.max(0, (stats.draft_tokens ?? 0) - (known.draft_tokens ?? 0));
    accepted += Math.max(0, (stats.accepted_draft_tokens ?? 0) - (known.accepted_draft_tokens ?? 0));
  }
  return share(accepted, drafted);
}
