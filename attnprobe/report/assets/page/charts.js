// Small drawings in SVG: axes, bars with intervals, strips of dots. They take numbers and draw them; they compute nothing.

function drawingOf(width, height, label) {
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

function line(x1, y1, x2, y2, cls) {
  return svg("line", { x1: round(x1), y1: round(y1), x2: round(x2), y2: round(y2), class: cls });
}

function text(x, y, content, cls, attributes = {}) {
  return svg("text", { x: round(x), y: round(y), class: cls, text: content, ...attributes });
}

function round(value) {
  return Math.round(value * 100) / 100;
}

// Ticks at round numbers that cover the domain, about `wanted` of them.
function ticks([low, high], wanted = 4) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const found = [];
  for (let i = first; i * step <= high + step * 1e-6; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// The least round number that is not under the value.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10]
    .map((factor) => factor * power)
    .find((candidate) => candidate >= value * 0.9999);
}

// Axis label of a tick: percentages for shares, else as few digits as it takes.
function tickLabel(value, unit) {
  return unit === "share"
    ? `${Number((value * 100).toPrecision(6))}%`
    : String(Number(value.toPrecision(6))).replace("-", "−");
}

// Upright bars with intervals. `items`: [{label, value, low, high, strong, tip}].
function barChart(width, height, items, { unit, top, label, every = 1 }) {
  const left = 40;
  const bottom = height - 22;
  const room = width - left - 4;
  const drawing = drawingOf(width, height, label);
  const y = (value) => bottom - (Math.min(value, top) / top) * (bottom - 8);
  for (const tick of ticks([0, top], 4)) {
    drawing.append(
      line(left, y(tick), width - 4, y(tick), "grid"),
      text(left - 6, y(tick) + 3.5, tickLabel(tick, unit), "axis end"),
    );
  }
  const pitch = room / items.length;
  items.forEach((item, i) => {
    const middle = left + pitch * (i + 0.5);
    const mark = svg("g", { class: `bar${item.strong ? " strong" : ""}` });
    if (isNumber(item.value)) {
      const wide = Math.max(2, Math.min(26, pitch * 0.72));
      mark.append(
        svg("rect", {
          x: round(middle - wide / 2),
          y: round(y(item.value)),
          width: round(wide),
          height: round(bottom - y(item.value)),
        }),
      );
      if (isNumber(item.low)) mark.append(line(middle, y(item.low), middle, y(item.high), "whisker"));
    }
    mark.append(
      svg("rect", { class: "reach", x: round(middle - pitch / 2), y: 0, width: round(pitch), height: bottom }),
    );
    hover(mark, item.tip);
    drawing.append(mark);
    if (i % every === 0) drawing.append(text(middle, bottom + 15, item.label, "axis middle"));
  });
  drawing.append(line(left, bottom, width - 4, bottom, "base"));
  return drawing;
}

// About how wide a label of an axis is; characters of East Asia are as wide as they are high.
function widthOf(label) {
  return [...label].reduce((sum, character) => sum + (character > "\u2e80" ? 11.4 : 6.6), 0);
}

// Where lying bars go: the same for what is drawn over them.
function lyingPlan(width, items, top) {
  const [pitch, right] = [24, 54];
  const left = Math.min(150, Math.max(...items.map((item) => widthOf(item.label))) + 14);
  const x = (value) => left + (Math.min(value, top) / top) * (width - left - right);
  return { pitch, left, right, x, middle: (i) => i * pitch + pitch / 2 + 2 };
}

// Lying bars with intervals and their value written at the end.
function lyingBars(width, items, { unit, top, label }) {
  const plan = lyingPlan(width, items, top);
  const { pitch, left, right, x } = plan;
  const drawing = drawingOf(width, items.length * pitch + 4, label);
  items.forEach((item, i) => {
    const middle = plan.middle(i);
    const mark = svg("g", { class: `bar${item.strong ? " strong" : ""}` });
    mark.append(text(left - 8, middle + 4, item.label, "axis end"));
    if (isNumber(item.value)) {
      mark.append(
        svg("rect", { x: left, y: round(middle - 7), width: round(Math.max(1, x(item.value) - left)), height: 14 }),
      );
      if (isNumber(item.low)) mark.append(line(x(item.low), middle, x(item.high), middle, "whisker"));
    }
    mark.append(
      text(width - right + 8, middle + 4, unit === "share" ? percent(item.value) : plain(item.value), "axis value"),
    );
    hover(mark, item.tip);
    drawing.append(mark);
  });
  drawing.append(line(left, 0, left, items.length * pitch + 4, "base"));
  return drawing;
}

// Where one value lies among many: a tick for each, the one in question bold.
function strip(width, values, chosen, [low, high], label) {
  const drawing = drawingOf(width, 18, label);
  const x = (value) => 3 + ((value - low) / (high - low || 1)) * (width - 6);
  drawing.append(line(0, 9, width, 9, "grid"));
  for (const value of values) if (isNumber(value)) drawing.append(line(x(value), 5, x(value), 13, "faint-tick"));
  if (isNumber(chosen))
    drawing.append(
      svg("path", { class: "pointer", d: `M${round(x(chosen))} 9 m-4 -8 h8 l-4 7 z` }),
      line(x(chosen), 3, x(chosen), 15, "bold-tick"),
    );
  return drawing;
}

// Shows `lines` (a function giving lines) at the pointer while it is over the node.
function hover(node, lines) {
  if (!lines) return;
  node.addEventListener("pointermove", (event) => tip.show(event.clientX, event.clientY, ...lines()));
  node.addEventListener("pointerleave", () => tip.hide());
}
