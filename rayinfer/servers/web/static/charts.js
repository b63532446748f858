// Lines over time on a canvas, with marks.

import { el, number } from "./elements.js";

const LEFT = 56, BOTTOM = 18, TOP = 8;
const UNITS = [[1e9, "B"], [1e6, "M"], [1e3, "K"]]; // of what is too wide for the left side
const GAP_S = 5; // without samples: the line is broken

// A canvas of lines; `show` draws them, and again where its size changes.
export function lineChart(label, names, options) {
  const canvas = el("canvas", { class: "chart", role: "img", "aria-label": label });
  let size = null, latest = null;
  const draw = () => { if (size && latest) drawLines(canvas, size, names, latest, options); };
  // Reported after the layout: to ask for the size would lay the page out once more.
  new ResizeObserver(([{ contentRect: { width, height } }]) => { size = width && height ? { width, height } : null; draw(); }).observe(canvas);
  return { canvas, show(points, marks) { latest = { points, marks }; draw(); } };
}

function drawLines(canvas, { width, height }, names, { points, marks }, { span, factor = 1, digits, isLogarithmic = false }) {
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const paint = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const color = (name) => style.getPropertyValue(name);
  paint.setTransform(scale, 0, 0, scale, 0, 0);
  paint.clearRect(0, 0, width, height);
  paint.font = `12px ${style.fontFamily}`;
  const values = points.flatMap((point) => names.map((name) => (point[name] ?? 0) * factor));
  const { ticks, shareOf, label } = isLogarithmic ? logarithmicAxis(values) : linearAxis(values, digits);
  const end = points.at(-1).time;
  const x = (time) => width - 4 - (end - time) / span * (width - LEFT - 8);
  const y = (value) => height - BOTTOM - shareOf(value) * (height - BOTTOM - TOP);
  paint.lineWidth = 1;
  paint.strokeStyle = color("--line");
  paint.fillStyle = color("--muted");
  paint.textAlign = "right";
  for (const value of ticks) {
    paint.beginPath(); paint.moveTo(LEFT, y(value)); paint.lineTo(width - 4, y(value)); paint.stroke();
    paint.fillText(label(value), LEFT - 6, y(value) + 4);
  }
  paint.textAlign = "left";
  paint.fillText("5 min ago", LEFT, height - 3);
  paint.textAlign = "right";
  paint.fillText("now", width - 4, height - 3);
  const lastDeaths = [...marks].sort((a, b) => (a.kind === "bad") - (b.kind === "bad")); // over what they caused
  for (const { time, kind } of lastDeaths) {
    if (end - time > span) continue;
    paint.strokeStyle = paint.fillStyle = color(`--${kind}`);
    paint.setLineDash([3, 3]);
    paint.beginPath(); paint.moveTo(x(time), TOP); paint.lineTo(x(time), height - BOTTOM); paint.stroke();
    paint.setLineDash([]);
    paint.beginPath(); paint.moveTo(x(time) - 4, TOP - 6); paint.lineTo(x(time) + 4, TOP - 6); paint.lineTo(x(time), TOP + 1); paint.fill();
  }
  paint.lineWidth = 2;
  paint.lineJoin = "round";
  names.forEach((name, index) => {
    paint.strokeStyle = color(`--line${index + 1}`);
    paint.beginPath();
    let drawn = -Infinity; // time of the point that the line has come to
    for (const point of points) {
      const value = point[name];
      if (value === null || value === undefined) { drawn = -Infinity; continue; }
      paint[point.time - drawn <= GAP_S ? "lineTo" : "moveTo"](x(point.time), y(value * factor));
      drawn = point.time;
    }
    paint.stroke();
  });
}

function linearAxis(values, digits) {
  const top = niceTop(values.reduce((most, value) => Math.max(most, value), 0));
  return { ticks: [0, top / 2, top], shareOf: (value) => value / top, label: (value) => top < 10_000 ? number(value, top < 4 ? 1 : digits) : compact(value) };
}

// Milliseconds of different sizes, from one power of ten to another; at most five are named.
function logarithmicAxis(values) {
  const powers = values.filter((value) => value > 0).map(Math.log10);
  const low = powers.reduce((least, power) => Math.min(least, Math.floor(power)), powers.length ? Infinity : 0);
  const high = powers.reduce((most, power) => Math.max(most, Math.ceil(power)), low + 2);
  const step = Math.ceil((high - low) / 4), ticks = [];
  for (let power = low; power <= high; power += step) ticks.push(10 ** power);
  return { ticks, shareOf: (value) => Math.max(0, Math.log10(value) - low) / (high - low), label: (value) => value < 1000 ? `${number(value, value < 1 ? 1 : 0)} ms` : `${number(value / 1000)} s` };
}

// The smallest of 1, 2 or 5 times a power of ten that is not below a value.
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= value);
}

function compact(value) {
  const [unit, name] = UNITS.find(([each]) => value >= each) ?? [1, ""];
  return `${number(value / unit, (value / unit) % 1 ? 1 : 0)}${name}`;
}
