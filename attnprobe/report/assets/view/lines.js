// One head as lines: queries on the left, keys on the right, a curve for each weight, wider and darker the larger it is.

const LINES = { height: 24, least: 0.01, faint: 0.001, most: 20000, shades: 16 };
const lines = { over: null };

function buildLines() {
  lines.left = el("div", { class: "lines-side queries", role: "group", "aria-label": t("word.queries") });
  lines.right = el("div", { class: "lines-side keys", role: "group", "aria-label": t("word.keys") });
  lines.canvas = el("canvas", { role: "img" });
  lines.middle = el("div", { class: "lines-middle" }, lines.canvas);
  const heads = [t("word.queries"), "", t("word.keys")].map((text) => el("span", { text }));
  lines.frame = el("div", { class: "lines", id: "lines", role: "region", tabindex: "0", "aria-label": t("view.lines") }, el("div", { class: "lines-heads", "aria-hidden": "true" }, heads), el("div", { class: "lines-body" }, lines.left, lines.middle, lines.right));
  lines.note = el("p", { class: "small", id: "lines-note" });
  lines.node = el("div", { class: "lines-holder" }, lines.frame, lines.note);
  for (const [holder, axis] of [[lines.left, "query"], [lines.right, "key"]]) watchSide(holder, axis);
  return lines.node;
}

function watchSide(holder, axis) {
  const unitOf = (event) => event.target.closest("button");
  const over = (event) => {
    const node = unitOf(event);
    lines.over = node ? { query: null, key: null, [axis]: Number(node.dataset.i) } : null;
    paintLines();
    emit("over", lines.over ? [lines.over.query, lines.over.key] : null);
  };
  holder.addEventListener("pointerover", over);
  holder.addEventListener("pointerleave", over);
  holder.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && over(event));
  holder.addEventListener("focusout", () => {
    lines.over = null;
    paintLines();
  });
  holder.addEventListener("click", (event) => {
    const node = unitOf(event);
    if (!node) return;
    const i = Number(node.dataset.i);
    const held = state[axis] === i;
    focusOn(axis === "query" && !held ? i : null, axis === "key" && !held ? i : null);
  });
  holder.addEventListener("keydown", (event) => {
    const nodes = [...holder.children];
    const at = nodes.indexOf(unitOf(event));
    const step = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") focusOn(null, null);
    if (at < 0 || step === undefined) return;
    event.preventDefault();
    const next = nodes[Math.min(nodes.length - 1, Math.max(0, at + step))];
    for (const node of nodes) node.tabIndex = node === next ? 0 : -1;
    next.focus();
  });
}

function drawLines() {
  fillSide(lines.left, scene.rows);
  fillSide(lines.right, scene.columns);
  paintLines();
}

function fillSide(holder, units) {
  if (holder.units === units) return;
  holder.units = units;
  holder.replaceChildren(
    ...units.map((unit, i) => el("button", { type: "button", tabindex: i ? "-1" : "0", data: { i }, title: unit.label }, label(unit), el("span", { class: "lines-weight", "aria-hidden": "true" }))),
  );
}

// The query or key in focus: under the pointer, else held by a click.
function lineFocus() {
  return lines.over || { query: state.query, key: state.key };
}

function paintLines() {
  const focus = lineFocus();
  const wide = Math.max(40, Math.floor(lines.middle.clientWidth));
  const high = Math.max(matrix.R, matrix.C, 1) * LINES.height;
  const ratio = Math.min(2, window.devicePixelRatio || 1, 30000 / high);
  furnish(lines.canvas, { width: Math.round(wide * ratio), height: Math.round(high * ratio) }, []);
  setStyle(lines.canvas, { width: `${wide}px`, height: `${high}px` });
  const pen = lines.canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const found = linesToDraw(focus);
  strokeLines(pen, found.drawn, wide);
  Object.assign(lines.canvas.dataset, { lines: found.drawn.length });
  const share = percent(found.all > 0 ? found.kept / found.all : NaN);
  const about = { lines: count(found.drawn.length), of: count(found.of), share, least: found.least.toFixed(3), most: count(LINES.most) };
  lines.note.textContent = t(found.cut ? "lines.cut" : "lines.note", about);
  lines.canvas.setAttribute("aria-label", `${matrix.name}. ${lines.note.textContent}`);
  markSides(focus);
}

// The weights that become lines, smallest first; in focus, every one that reaches the threshold.
function linesToDraw({ query, key }) {
  const focused = query !== null || key !== null;
  const least = Math.max(focused ? LINES.faint : LINES.least, state.least);
  const found = { least, drawn: [], of: 0, kept: 0, all: 0, cut: false };
  for (let row = 0; row < matrix.R; row += 1) {
    for (let column = 0; column < matrix.C; column += 1) {
      if (isLater(row, column) || (focused && query !== row && key !== column)) continue;
      const weight = matrix.at(row, column);
      if (!isNumber(weight)) continue;
      found.of += 1;
      found.all += weight;
      if (weight >= least) found.drawn.push([row, column, weight]);
    }
  }
  found.drawn.sort((a, b) => a[2] - b[2]);
  if (found.drawn.length > LINES.most) {
    found.cut = true;
    found.drawn = found.drawn.slice(-LINES.most);
  }
  for (const [, , weight] of found.drawn) found.kept += weight;
  return found;
}

// Lines of about the same weight are drawn in one stroke.
function strokeLines(pen, drawn, wide) {
  const shades = Array.from({ length: LINES.shades }, () => new Path2D());
  const middle = (place) => (place + 0.5) * LINES.height;
  for (const [row, column, weight] of drawn) {
    const shade = Math.min(LINES.shades - 1, Math.floor(Math.sqrt(weight) * LINES.shades));
    const [y1, y2] = [middle(row), middle(column)];
    shades[shade].moveTo(2, y1);
    shades[shade].bezierCurveTo(wide * 0.45, y1, wide * 0.55, y2, wide - 2, y2);
  }
  pen.strokeStyle = getComputedStyle(lines.frame).getPropertyValue("--accent");
  pen.lineCap = "round";
  shades.forEach((path, shade) => {
    const strength = ((shade + 0.5) / LINES.shades) ** 2;
    pen.globalAlpha = 0.12 + 0.88 * strength;
    pen.lineWidth = 0.7 + 4.3 * strength;
    pen.stroke(path);
  });
}

// The tokens in focus, and beside each token of the other side its weight.
function markSides({ query, key }) {
  const fill = (holder, chosen, other, weightOf) => {
    [...holder.children].forEach((node, i) => {
      const weight = other === null ? NaN : weightOf(i);
      const shown = other !== null && isNumber(weight) && weight >= state.least;
      node.setAttribute("aria-pressed", String(chosen === i));
      node.lastChild.textContent = shown && weight >= 0.0005 ? weightText(weight) : "";
      setStyle(node, { "--weight": shown ? `${(weight * 100).toFixed(1)}%` : "0%" });
    });
  };
  fill(lines.left, query, key, (row) => matrix.at(row, key));
  fill(lines.right, key, query, (column) => matrix.at(query, column));
}
