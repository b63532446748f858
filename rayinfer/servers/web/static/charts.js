// Lines over time on a canvas, with marks.

import { number } from "./elements.js";

const LEFT = 44, BOTTOM = 18, TOP = 8;
const COMPACT = new Intl.NumberFormat("en", { notation: "compact" }); // of what is too wide for the left side

export function drawLines(canvas, points, names, marks, { span, factor = 1, digits }) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return;
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
  const highest = points.reduce((most, point) => names.reduce((top, name) => Math.max(top, point[name] ?? 0), most), 0) * factor;
  const top = niceTop(highest);
  const end = points.at(-1).time;
  const x = (time) => width - 4 - (end - time) / span * (width - LEFT - 8);
  const y = (value) => height - BOTTOM - value / top * (height - BOTTOM - TOP);
  paint.lineWidth = 1;
  paint.strokeStyle = color("--line");
  paint.fillStyle = color("--muted");
  paint.textAlign = "right";
  for (const value of [0, top / 2, top]) {
    paint.beginPath(); paint.moveTo(LEFT, y(value)); paint.lineTo(width - 4, y(value)); paint.stroke();
    paint.fillText(top < 10_000 ? number(value, top < 4 ? 1 : digits) : COMPACT.format(value), LEFT - 6, y(value) + 4);
  }
  paint.textAlign = "left";
  paint.fillText("5 min ago", LEFT, height - 3);
  paint.textAlign = "right";
  paint.fillText("now", width - 4, height - 3);
  for (const { time, kind } of marks) {
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
    let isDrawing = false;
    for (const point of points) {
      const value = point[name];
      if (value === null || value === undefined) { isDrawing = false; continue; }
      paint[isDrawing ? "lineTo" : "moveTo"](x(point.time), y(value * factor));
      isDrawing = true;
    }
    paint.stroke();
  });
}

// The smallest of 1, 2 or 5 times a power of ten that is not below a value.
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= value);
}
