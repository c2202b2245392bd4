// One head's pattern over one sentence: by tokens or by words, with or without special tokens, and its drawings.

// The units of an example: tokens, or words (special tokens stay by themselves). Words without a token are left out.
function unitsOf(example, words) {
  const units = [];
  example.tokens.forEach((token, i) => {
    const belongs = example.word_index[i];
    const special = Boolean(example.special[i]);
    const last = units[units.length - 1];
    if (words && belongs >= 0 && last && last.word === belongs) last.tokens.push(i);
    else
      units.push({
        label: words && belongs >= 0 ? (example.words[belongs] ?? token) : token,
        tokens: [i],
        word: belongs,
        special,
      });
  });
  return units;
}

// Weights between units: summed over the tokens of a key word, averaged over the tokens of a query word. `hidden` is the mean share
// of attention that goes to units left out of sight; what is shown is not rescaled.
function matrixOf(example, layer, head, { words, hide }) {
  const all = unitsOf(example, words);
  const units = hide ? all.filter((unit) => !unit.special) : all;
  const n = units.length;
  const weights = new Float32Array(n * n);
  let shown = 0;
  let total = 0;
  units.forEach((query, row) => {
    for (const q of query.tokens) {
      for (let k = 0; k < example.tokens.length; k += 1)
        total += example.pattern.at(layer, head, q, k) / query.tokens.length;
    }
    units.forEach((key, column) => {
      let sum = 0;
      for (const q of query.tokens) for (const k of key.tokens) sum += example.pattern.at(layer, head, q, k);
      const weight = sum / query.tokens.length / example.scale;
      weights[row * n + column] = weight;
      shown += weight * example.scale;
    });
  });
  const hidden = total > 0 ? Math.max(0, 1 - shown / total) : 0;
  return {
    units,
    n,
    weights,
    hidden: n === all.length ? 0 : hidden,
    at: (q, k) => weights[q * n + k],
    name: headName(layer, head),
  };
}

// One pixel per weight; the style sheet enlarges it without smoothing.
function paintThumb(canvas, matrix) {
  const { n, weights } = matrix;
  canvas.width = n;
  canvas.height = n;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(n || 1, n || 1);
  for (let i = 0; i < n * n; i += 1) {
    const [r, g, b] = weightColour(weights[i]);
    picture.data.set([r, g, b, 255], i * 4);
  }
  context.putImageData(picture, 0, 0);
  canvas.dataset.drawn = n;
}

// Where everything of the large matrix goes, for a given width.
function matrixPlan(matrix, width) {
  const pen = el("canvas").getContext("2d");
  pen.font = "12px system-ui, sans-serif";
  const longest = Math.max(20, ...matrix.units.map((unit) => Math.min(120, pen.measureText(unit.label).width)));
  const room = Math.min(longest + 16, width * 0.36);
  const size = Math.max(5, Math.min(30, Math.floor((width - room - 2) / Math.max(1, matrix.n))));
  const font = Math.max(8, Math.min(12, size - 1));
  return { left: Math.ceil(room), top: Math.ceil(room) + 4, size, font, room, extent: size * matrix.n };
}

// Draws the matrix with its words on a canvas; queries down the side, keys along the top.
function paintMatrix(canvas, matrix, plan) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const [width, height] = [plan.left + plan.extent + 2, plan.top + plan.extent + 2];
  furnish(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) }, []);
  setStyle(canvas, { width: `${width}px`, height: `${height}px` });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const gap = plan.size > 10 ? 1 : 0;
  for (let q = 0; q < matrix.n; q += 1) {
    for (let k = 0; k < matrix.n; k += 1) {
      pen.fillStyle = hex(weightColour(matrix.at(q, k)));
      pen.fillRect(plan.left + k * plan.size, plan.top + q * plan.size, plan.size - gap, plan.size - gap);
    }
  }
  const ink = getComputedStyle(canvas).color;
  const faint = getComputedStyle(canvas).getPropertyValue("--muted");
  pen.font = `${plan.font}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  matrix.units.forEach((unit, i) => {
    pen.fillStyle = unit.special ? faint : ink;
    const middle = (i + 0.5) * plan.size;
    const label = fitted(pen, unit.label, plan.room - 10);
    pen.textAlign = "right";
    pen.fillText(label, plan.left - 6, plan.top + middle);
    pen.save();
    pen.translate(plan.left + middle, plan.top - 6);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "left";
    pen.fillText(label, 0, 0);
    pen.restore();
  });
  canvas.dataset.drawn = matrix.n;
}

// A label cut to the room it has; whole characters only, so that no emoji is torn.
function fitted(pen, label, room) {
  if (pen.measureText(label).width <= room) return label;
  const parts = [...new Intl.Segmenter().segment(label)].map((one) => one.segment);
  while (parts.length > 1 && pen.measureText(`${parts.join("")}…`).width > room) parts.pop();
  return `${parts.join("")}…`;
}

function matrixDrawing(matrix) {
  const plan = matrixPlan(matrix, 720);
  const drawing = drawingOf(plan.left + plan.extent + 8, plan.top + plan.extent + 34, matrix.name);
  const size = {
    "font-size": plan.font,
    "font-family": "system-ui, sans-serif",
    fill: isDark() ? "#e6e4df" : "#1c1e21",
  };
  for (let q = 0; q < matrix.n; q += 1) {
    for (let k = 0; k < matrix.n; k += 1) {
      drawing.append(
        svg("rect", {
          x: plan.left + k * plan.size,
          y: plan.top + q * plan.size,
          width: plan.size - 0.5,
          height: plan.size - 0.5,
          fill: hex(weightColour(matrix.at(q, k))),
        }),
      );
    }
  }
  matrix.units.forEach((unit, i) => {
    const middle = (i + 0.5) * plan.size;
    drawing.append(
      svg("text", {
        x: plan.left - 6,
        y: plan.top + middle + plan.font / 3,
        "text-anchor": "end",
        text: unit.label,
        ...size,
      }),
    );
    drawing.append(
      svg("text", {
        transform: `translate(${plan.left + middle + plan.font / 3} ${plan.top - 6}) rotate(-90)`,
        text: unit.label,
        ...size,
      }),
    );
  });
  drawing.append(
    svg("text", { x: plan.left, y: plan.top + plan.extent + 22, text: `${page.model} ${matrix.name}`, ...size }),
  );
  return drawing;
}

function weightLines(matrix, q, k) {
  const pair = el("div", {}, word(matrix.units[q].label), ` ${t("patterns.to")} `, word(matrix.units[k].label));
  return [pair, el("strong", { text: percent(matrix.at(q, k)) })];
}

function matrixTable(matrix) {
  const columns = [
    { label: t("patterns.query"), kind: "text" },
    ...matrix.units.map((unit) => ({ label: unit.label, kind: "number" })),
  ];
  const rows = matrix.units.map((unit, q) => [
    { text: unit.label },
    ...matrix.units.map((_, k) => numberCell(Number(matrix.at(q, k).toFixed(4)), percent)),
  ]);
  return { columns, rows };
}
