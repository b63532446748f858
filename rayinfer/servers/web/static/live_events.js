// Marks of the live view: what changed from one sample of a model to the next.

const SHOWN_NAME = 24; // characters

export function eventsOf(time, before, now) {
  const found = [];
  const mark = (kind, text) => found.push({ time, kind, text });
  for (const engine of Object.keys(before.engines)) if (!(engine in now.engines)) mark("bad", `engine ${short(engine)} is gone`);
  for (const [engine, stats] of Object.entries(now.engines)) {
    const known = before.engines[engine];
    if (!known) mark("good", `engine ${short(engine)} joined`);
    else if (known.state !== stats.state) mark(stats.state === "dead" ? "bad" : "warn", `engine ${short(engine)} is ${stats.state}`);
    else if (stats.preemptions > known.preemptions) mark("warn", `engine ${short(engine)} preempted ${counted(stats.preemptions - known.preemptions, "request")}`);
  }
  const migrated = now.migrations - before.migrations;
  if (migrated > 0) mark("warn", `${counted(migrated, "stream")} migrated`);
  if (before.ready !== now.ready) mark(now.ready ? "good" : "bad", now.ready ? "ready" : `not ready: ${now.reason ?? ""}`);
  const known = before.scaling?.length ? before.scaling.at(-1).time_s : 0;
  for (const each of now.scaling ?? []) if (each.time_s > known) mark("warn", `${each.before} to ${each.after} engines`);
  return found;
}

function counted(count, noun) { return `${count} ${noun}${count === 1 ? "" : "s"}`; }

// The end of a long name, where names of engines differ, from a hyphen on.
function short(engine) { return engine.length <= SHOWN_NAME ? engine : engine.slice(-SHOWN_NAME).replace(/^[^-]*-|^/, "…"); }
