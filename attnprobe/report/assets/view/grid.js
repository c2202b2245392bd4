// All heads at once: layers as rows, heads as columns, one small picture each.

const GRID = { least: 26, tight: 19, most: 116, gap: 4, margin: 46 };
const MANY_HEADS = 12; // more of them may be drawn smaller, under numbers alone
const grid = { holder: null, cells: new Map(), width: 0 };

function buildGrid() {
  grid.holder = byId("grid");
  on("scene", drawGrid);
  on("head", markCell);
  grid.holder.addEventListener("keydown", gridKey);
  grid.holder.addEventListener("click", (event) => openCell(event.target.closest("[data-place]")));
  grid.holder.addEventListener("pointerover", (event) => cellTip(event.target.closest("[data-place]"), event));
  grid.holder.addEventListener("pointerleave", () => tip.hide());
  grid.holder.addEventListener("focusin", (event) => event.target.matches("[data-place]:focus-visible") && cellTip(event.target));
  grid.holder.addEventListener("focusout", () => tip.hide());
  drawToWidth(grid.holder, () => scene && drawGrid());
}

function headNumbers(stack) {
  return [...new Set(stack.modules.flatMap((module) => module.heads))].sort((a, b) => a - b);
}

// Lays the table out anew where its shape changed, then draws every head, in pieces.
async function drawGrid() {
  const stack = chosenStack();
  const numbers = headNumbers(stack);
  const room = Math.floor(grid.holder.clientWidth) - GRID.margin;
  const width = Math.min(GRID.most, Math.max(numbers.length > MANY_HEADS ? GRID.tight : GRID.least, Math.floor(room / numbers.length) - GRID.gap));
  const ratio = Math.min(1.6, Math.max(0.35, matrix.R / Math.max(1, matrix.C)));
  layGrid(stack, numbers, { width, height: Math.max(12, Math.round(width * ratio)) });
  markCell();
  const mean = { away: 0, heads: 0 };
  const finished = await inPieces("grid", [...grid.cells.values()], (cell) => {
    const one = matrixAt(stack.modules[cell.module], cell.place);
    paintThumb(cell.canvas, one, state.least);
    if (isNumber(one.mass.shown)) mean.away += 1 - one.mass.shown;
    mean.heads += 1;
  });
  if (!finished) return;
  const share = percent(mean.away / mean.heads);
  byId("grid-note").textContent = mean.away / mean.heads > 0.0005 ? t("grid.away", { share, n: mean.heads }) : t("grid.note");
  emit("grid");
}

function layGrid(stack, numbers, { width, height }) {
  const key = `${state.stack} ${width} ${height}`;
  if (grid.holder.dataset.shape === key) return;
  grid.holder.dataset.shape = key;
  grid.cells.clear();
  const top = el("tr", { role: "row" }, el("th", { class: "corner", role: "columnheader", scope: "col" }, el("span", { class: "hidden", text: t("word.layer") })), numbers.map((head) => el("th", { role: "columnheader", scope: "col", text: width < GRID.least ? String(head) : `H${head}` })));
  const rows = stack.modules.map((module, m) => {
    const kind = layerName(stack, module);
    const name = el("th", { role: "rowheader", scope: "row", title: kind }, `L${module.layer}`);
    return el("tr", { role: "row" }, name, numbers.map((head) => gridCell(module, m, head, width, height)));
  });
  grid.holder.replaceChildren(el("table", { class: width < GRID.least ? "heads tight" : "heads", role: "grid", "aria-label": t("grid.title") }, el("thead", { role: "rowgroup" }, top), el("tbody", { role: "rowgroup" }, rows)));
}

function gridCell(module, m, head, width, height) {
  const place = module.heads.indexOf(head);
  if (place < 0) return el("td", { role: "gridcell", class: "none", "aria-label": t("grid.none", { head: headName(module.layer, head) }) });
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const canvas = el("canvas", { width: Math.round(width * ratio), height: Math.round(height * ratio), "aria-hidden": "true" });
  setStyle(canvas, { width: `${width}px`, height: `${height}px` });
  const node = el("td", { role: "gridcell", tabindex: "-1", "aria-label": headName(module.layer, head), data: { module: m, place } }, canvas);
  grid.cells.set(`${m} ${place}`, { node, canvas, module: m, place });
  return node;
}

// Where a picture has fewer points than the pattern has weights, a point shows the largest of those it covers. What a query cannot see
// stays clear.
function paintThumb(canvas, one, least) {
  const { width, height } = canvas;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  const points = new Uint32Array(picture.data.buffer);
  const columns = coverage(width, one.C);
  coverage(height, one.R).forEach(([top, bottom], y) => {
    for (let x = 0; x < columns.length; x += 1) {
      const [left, right] = columns[x];
      let weight = 0;
      for (let row = top; row < bottom; row += 1) for (let at = row * one.C + left; at < row * one.C + right; at += 1) if (one.weights[at] > weight) weight = one.weights[at];
      if (weight > 0 || !isLater(bottom - 1, left)) points[y * width + x] = shades.packed[weight >= least ? shadeOf(weight) : 0];
    }
  });
  context.putImageData(picture, 0, 0);
  canvas.dataset.drawn = `${one.R}x${one.C}`;
}

// Which of n weights each of `size` points covers.
function coverage(size, n) {
  return Array.from({ length: n ? size : 0 }, (_, i) => {
    const from = Math.floor((i * n) / size);
    return [from, Math.max(from + 1, Math.floor(((i + 1) * n) / size))];
  });
}

function markCell() {
  for (const { node, module, place } of grid.cells.values()) {
    const chosen = module === state.module && place === state.place;
    node.setAttribute("aria-selected", String(chosen));
    node.tabIndex = chosen ? 0 : -1;
  }
}

function openCell(node) {
  if (!node) return;
  tip.hide();
  chooseHead(Number(node.dataset.module), Number(node.dataset.place), "grid");
  const large = byId("head");
  if (large.getBoundingClientRect().top > window.innerHeight * 0.7) large.scrollIntoView({ block: "start" });
}

// The head's name, and the pair it weighs most.
function cellTip(node, event) {
  if (!node) {
    tip.hide();
    return;
  }
  const module = chosenStack().modules[Number(node.dataset.module)];
  const one = matrixAt(module, Number(node.dataset.place));
  let [best, at] = [-1, -1];
  one.weights.forEach((weight, i) => {
    if (weight > best) [best, at] = [weight, i];
  });
  const kind = layerName(chosenStack(), module);
  const lines = [el("strong", { text: kind ? `${one.name} · ${kind}` : one.name })];
  if (at >= 0) lines.push(el("div", {}, t("grid.strongest"), " ", ...pairOf(Math.floor(at / one.C), at % one.C), ` ${weightText(best)}`));
  if (event) tip.show(event.clientX, event.clientY, ...lines);
  else tip.beside(node, ...lines);
}

// Arrow keys walk over the heads; Home and End along the layer; Enter shows the head.
function gridKey(event) {
  const node = event.target.closest("[data-place]");
  if (!node) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    openCell(node);
    return;
  }
  if (event.key === "Escape") tip.hide();
  const row = [...node.parentElement.querySelectorAll("[data-place]")];
  const rows = [...grid.holder.querySelectorAll("tbody tr")];
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  const clamp = (value, most) => Math.min(most, Math.max(0, value));
  const line = rows[clamp(rows.indexOf(node.parentElement) + step[0], rows.length - 1)];
  const cells = step[0] ? [...line.querySelectorAll("[data-place]")] : row;
  const next = cells[clamp(row.indexOf(node) + step[1], cells.length - 1)];
  for (const { node: other } of grid.cells.values()) other.tabIndex = other === next ? 0 : -1;
  next.focus();
}
