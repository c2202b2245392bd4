// One head as a matrix: queries down the side, keys along the top. Only the part in view is drawn, so that long texts stay quick.

const SHEET = { least: 11, most: 42, text: 9, written: 30, gutter: 132, narrow: 84, shortest: 56 };
const sheet = { cursor: null, over: null };

function buildSheet() {
  sheet.canvas = el("canvas", { "aria-hidden": "true" });
  sheet.top = el("div", { class: "sheet-top", "aria-hidden": "true" });
  sheet.side = el("div", { class: "sheet-side", "aria-hidden": "true" });
  sheet.body = el("div", { class: "sheet-body" }, sheet.canvas);
  sheet.corner = el("div", { class: "sheet-corner", "aria-hidden": "true" }, t("sheet.corner").split(" / ").map((text) => el("div", { text })));
  sheet.space = el("div", { class: "sheet-space" }, sheet.corner, sheet.top, sheet.side, sheet.body);
  sheet.frame = el("div", { class: "sheet", id: "sheet", tabindex: "0", role: "application", "aria-roledescription": t("sheet.role") }, sheet.space);
  sheet.size = el("input", { type: "range", id: "size", min: "1", max: String(SHEET.most), step: "1", input: () => resize(Number(sheet.size.value)) });
  const tools = el("div", { class: "sheet-tools" }, el("label", { class: "inline" }, el("span", { text: t("sheet.size") }), sheet.size), button(t("sheet.fit"), () => resize(fitting(1))), button(t("sheet.readable"), () => resize(0)), el("span", { class: "small", text: t("sheet.keys") }));
  sheet.node = el("div", { class: "sheet-holder" }, sheet.frame, tools);
  watchSheet();
  return sheet.node;
}

// The largest cell with which the whole pattern can be seen without scrolling.
function fitting(least) {
  const room = sheet.node.clientWidth - gutter() - 4;
  return Math.max(least, Math.min(SHEET.most, Math.floor(room / Math.max(1, matrix.C))));
}

// Room for the longest label, within reason.
function gutter() {
  if (sheet.measured !== scene) {
    const pen = el("canvas").getContext("2d");
    pen.font = "13px system-ui, sans-serif";
    sheet.longest = Math.max(...[...scene.rows, ...scene.columns].map((unit) => pen.measureText(visible(unit.label)).width), 0);
    sheet.measured = scene;
  }
  const most = sheet.node.clientWidth < 480 ? SHEET.narrow : SHEET.gutter;
  return Math.round(Math.min(most, Math.max(SHEET.shortest, sheet.longest + 18)));
}

function resize(size) {
  state.size = size;
  drawSheet();
}

function cellSize() {
  return state.size || fitting(SHEET.least);
}

function drawSheet() {
  const size = cellSize();
  const room = gutter();
  const sparse = size < SHEET.text + 1;
  sheet.size.value = String(size);
  sheet.frame.setAttribute("aria-label", t("sheet.label", { head: matrix.name, rows: matrix.R, columns: matrix.C }));
  setStyle(sheet.space, { "--room": `${room}px`, "--size": `${size}px`, "--wide": `${matrix.C * size}px`, "--high": `${matrix.R * size}px`, "--label": `${sparse ? 12 : Math.min(13, Math.max(SHEET.text, size - 2))}px` });
  sheet.frame.classList.toggle("unlabelled", sparse);
  fillLabels(sheet.side, scene.rows, "top", size);
  fillLabels(sheet.top, scene.columns, "left", size);
  paintSheet();
  markLabels();
}

function fillLabels(holder, units, side, size) {
  if (holder.units !== units) {
    holder.replaceChildren(...units.map((unit, i) => el("div", { class: "sheet-label", data: { i }, title: unit.label }, label(unit))));
    holder.units = units;
  }
  [...holder.children].forEach((node, i) => setStyle(node, { [side]: `${i * size}px` }));
}

// Draws the cells in view.
function paintSheet() {
  const size = cellSize();
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const { frame, canvas } = sheet;
  const wide = Math.max(1, Math.min(matrix.C * size, frame.clientWidth - gutter()));
  const high = Math.max(1, Math.min(matrix.R * size, frame.clientHeight - gutter()));
  furnish(canvas, { width: Math.round(wide * ratio), height: Math.round(high * ratio) }, []);
  setStyle(canvas, { width: `${wide}px`, height: `${high}px` });
  const pen = canvas.getContext("2d");
  const [left, top] = [frame.scrollLeft, frame.scrollTop];
  pen.setTransform(ratio, 0, 0, ratio, -left * ratio, -top * ratio);
  const [firstColumn, lastColumn] = [Math.floor(left / size), Math.min(matrix.C, Math.ceil((left + wide) / size))];
  const [firstRow, lastRow] = [Math.floor(top / size), Math.min(matrix.R, Math.ceil((top + high) / size))];
  let drawn = 0;
  for (let row = firstRow; row < lastRow; row += 1) {
    for (let column = firstColumn; column < lastColumn; column += 1) drawn += paintCell(pen, row, column, size);
  }
  outline(pen, size);
  Object.assign(canvas.dataset, { cells: drawn, inView: (lastRow - firstRow) * (lastColumn - firstColumn) });
}

// One weight; 1 where it was drawn, 0 where it is below the threshold, undefined or not to be seen.
function paintCell(pen, row, column, size) {
  if (isLater(row, column)) return 0;
  const weight = matrix.at(row, column);
  const gap = size >= 8 ? 1 : 0;
  const shown = weight >= state.least; // false where it is undefined
  const focused = (state.query === null && state.key === null) || state.query === row || state.key === column;
  const shade = shadeOf(shown ? weight : 0);
  pen.globalAlpha = focused ? 1 : 0.22;
  pen.fillStyle = shades.css[shade];
  if (isNumber(weight)) pen.fillRect(column * size, row * size, size - gap, size - gap);
  else strike(pen, row, column, size);
  if (shown && size >= SHEET.written && weight >= 0.005) write(pen, weight, shade, row, column, size);
  pen.globalAlpha = 1;
  return shown ? 1 : 0;
}

function strike(pen, row, column, size) {
  pen.strokeStyle = getComputedStyle(sheet.frame).getPropertyValue("--line-strong");
  pen.beginPath();
  pen.moveTo(column * size, (row + 1) * size - 1);
  pen.lineTo((column + 1) * size - 1, row * size);
  pen.stroke();
}

function write(pen, weight, shade, row, column, size) {
  pen.fillStyle = shades.ink[shade];
  pen.font = `${Math.min(12, Math.round(size * 0.33))}px system-ui, sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(weight >= 0.995 ? "1" : weight.toFixed(2).slice(1), (column + 0.5) * size - 0.5, (row + 0.5) * size);
}

// The cell under the pointer or the cursor.
function outline(pen, size) {
  const cell = sheet.over || sheet.cursor;
  if (!cell) return;
  const style = getComputedStyle(sheet.frame);
  const [row, column] = cell;
  pen.strokeStyle = style.getPropertyValue("--panel");
  pen.lineWidth = 4;
  pen.strokeRect(column * size, row * size, size - 1, size - 1);
  pen.strokeStyle = style.getPropertyValue("--ink");
  pen.lineWidth = 2;
  pen.strokeRect(column * size, row * size, size - 1, size - 1);
}

function markLabels() {
  const [row, column] = sheet.over || sheet.cursor || [null, null];
  const mark = (holder, chosen, current) => {
    for (const node of holder.children) {
      const i = Number(node.dataset.i);
      node.classList.toggle("chosen", i === chosen);
      node.classList.toggle("current", i === current);
    }
  };
  mark(sheet.side, state.query, row);
  mark(sheet.top, state.key, column);
}

function refreshSheet() {
  paintSheet();
  markLabels();
}

// Pointer: a cell shows its value, a click holds its row and column. Keys: arrows move, Enter holds, Escape lets go.
function watchSheet() {
  const { frame, body } = sheet;
  frame.addEventListener("scroll", () => requestAnimationFrame(paintSheet), { passive: true });
  body.addEventListener("pointermove", (event) => hoverCell(cellUnder(event), event));
  body.addEventListener("pointerleave", () => hoverCell(null));
  body.addEventListener("click", (event) => {
    const cell = cellUnder(event);
    if (cell) holdCell(cell);
  });
  for (const [holder, axis] of [[sheet.side, "query"], [sheet.top, "key"]]) {
    holder.addEventListener("click", (event) => {
      const node = event.target.closest(".sheet-label");
      if (!node) return;
      const i = Number(node.dataset.i);
      const now = { query: null, key: null, [axis]: state[axis] === i && state[axis === "query" ? "key" : "query"] === null ? null : i };
      focusOn(now.query, now.key);
    });
  }
  frame.addEventListener("keydown", sheetKey);
  frame.addEventListener("blur", () => tip.hide());
}

function cellUnder(event) {
  const box = sheet.body.getBoundingClientRect();
  const size = cellSize();
  const [row, column] = [Math.floor((event.clientY - box.top) / size), Math.floor((event.clientX - box.left) / size)];
  return row >= 0 && column >= 0 && row < matrix.R && column < matrix.C ? [row, column] : null;
}

function weightLines([row, column]) {
  return [el("div", { class: "pair-line" }, pairOf(row, column)), el("strong", { class: "tip-weight", text: weightText(matrix.at(row, column)) })];
}

function hoverCell(cell, event) {
  const same = String(cell) === String(sheet.over);
  sheet.over = cell;
  if (cell) tip.show(event.clientX, event.clientY, ...weightLines(cell));
  else tip.hide();
  if (!same) {
    refreshSheet();
    emit("over", cell);
  }
}

function holdCell([row, column]) {
  const again = state.query === row && state.key === column;
  sheet.cursor = again ? null : [row, column];
  focusOn(again ? null : row, again ? null : column);
}

function sheetKey(event) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity], PageUp: [-Infinity, 0], PageDown: [Infinity, 0] };
  if (event.key === "Escape") {
    sheet.cursor = null;
    tip.hide();
    focusOn(null, null);
  } else if ((event.key === "Enter" || event.key === " ") && sheet.cursor) {
    event.preventDefault();
    holdCell(sheet.cursor);
  } else if (moves[event.key] && matrix.R && matrix.C) {
    event.preventDefault();
    moveCursor(moves[event.key]);
  }
}

function moveCursor([down, right]) {
  const clamp = (value, most) => Math.min(most, Math.max(0, value));
  const [row, column] = sheet.cursor || [state.query ?? -1, state.key ?? 0];
  sheet.cursor = sheet.cursor || state.query !== null ? [clamp(row + down, matrix.R - 1), clamp(column + right, matrix.C - 1)] : [0, 0];
  sheet.over = null;
  const size = cellSize();
  const box = sheet.frame;
  const into = (place, extent, at) => Math.min(place * size, Math.max(at, (place + 1) * size - (extent - gutter())));
  box.scrollTop = into(sheet.cursor[0], box.clientHeight, box.scrollTop);
  box.scrollLeft = into(sheet.cursor[1], box.clientWidth, box.scrollLeft);
  refreshSheet();
  const frame = sheet.body.getBoundingClientRect();
  tip.show(frame.left + (sheet.cursor[1] + 1) * size, frame.top + (sheet.cursor[0] + 1) * size, ...weightLines(sheet.cursor));
  const [q, k] = sheet.cursor;
  say(`${visible(scene.rows[q].label)} → ${visible(scene.columns[k].label)}: ${weightText(matrix.at(q, k))}`);
  emit("over", sheet.cursor);
}
