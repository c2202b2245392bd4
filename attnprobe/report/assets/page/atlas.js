// The head atlas: one cell per head, layers as rows, a menu of what is shown, a legend, and the way to each head's card.

// Heads from which the atlas takes the page's whole width.
const MANY_COLUMNS = 12;
const atlas = { cells: [], view: null, figure: null, controls: null, legend: null };

function buildAtlas() {
  const options = viewOptions();
  const holder = byId("atlas-app");
  if (!options.length || !page.layers.length) {
    holder.append(el("p", { class: "notice", text: t("atlas.nothing") }));
    return;
  }
  state.shown = options[0].value;
  state.relation = Math.max(0, page.relations ? page.relations.names.indexOf(page.start.relation) : 0);
  state.direction = Math.max(0, page.relations ? page.relations.directions.indexOf(page.start.direction) : 0);
  atlas.controls = el("div", { class: "controls" });
  atlas.legend = el("div", { class: "legend" });
  const body = el("div", { class: "atlas-body" }, atlas.legend, atlasGrid());
  atlas.figure = figure({ name: "atlas", caption: "", body, drawing: atlasDrawing, table: atlasTable });
  holder.append(atlas.controls, atlas.figure.node);
  holder.parentElement.classList.toggle("many", page.heads > MANY_COLUMNS);
  on("theme", paintAtlas);
  on("head", markHead);
  new ResizeObserver(() => holder.classList.toggle("stays", holder.offsetHeight < window.innerHeight - 80)).observe(
    holder,
  );
  showView(state.shown);
}

function showView(key) {
  const [kind, which] = splitOnce(key);
  state.shown = key;
  if (kind === "relation") state.relation = Number(which);
  if (kind === "measure") state.extra = page.measures[Number(which)].dims.map((dim) => usualPlace(dim));
  fillControls(kind, which);
  paintAtlas();
  if (kind === "relation") emit("relation", "atlas");
}

// Where a dimension starts: the previous token, [CLS], sinks kept; else its first value.
function usualPlace(dim) {
  const wanted = { offset: "-1", target: "cls" }[dim.name];
  return Math.max(0, dim.values.indexOf(wanted));
}

function fillControls(kind, which) {
  const boxes = [selectBox(t("atlas.show"), viewOptions(), state.shown, showView, { id: "atlas-show" })];
  const again = (change) => (value) => {
    change(Number(value));
    paintAtlas();
  };
  if (kind === "measure") {
    page.measures[Number(which)].dims.forEach((dim, i) => {
      const choices = dim.values.map((_, place) => ({ value: String(place), label: coordinateLabel(dim, place) }));
      boxes.push(
        selectBox(
          named(`dim.${dim.name}`, dim.name),
          choices,
          String(state.extra[i]),
          again((place) => (state.extra[i] = place)),
          { "data-dim": dim.name },
        ),
      );
    });
  }
  if (kind === "relation") {
    boxes.push(directionBox(again), scorerBox(again));
    const amounts = ["accuracy", "difference"].map((value) => ({ value, label: t(`atlas.amount.${value}`) }));
    boxes.push(
      selectBox(t("atlas.amount"), amounts, state.amount, (value) => {
        state.amount = value;
        paintAtlas();
      }),
    );
  }
  atlas.controls.replaceChildren(...boxes.filter(Boolean));
}

function directionBox(again) {
  const choices = page.relations.directions.map((name, i) => ({ value: String(i), label: arrow(name) }));
  return selectBox(
    t("word.direction"),
    choices,
    String(state.direction),
    again((place) => (state.direction = place)),
    { "data-dim": "direction" },
  );
}

function scorerBox(again) {
  if (page.relations.scorers.length < 2) return null;
  const choices = page.relations.scorers.map((name, i) => ({ value: String(i), label: named(`scorer.${name}`, name) }));
  return selectBox(
    t("word.scorer"),
    choices,
    String(state.scorer),
    again((place) => (state.scorer = place)),
    { "data-dim": "scorer" },
  );
}

function atlasGrid() {
  const heads = Array.from({ length: page.heads }, (_, head) => head);
  const top = el(
    "tr",
    { role: "row" },
    el(
      "th",
      { class: "corner", role: "columnheader", scope: "col" },
      el("span", { class: "hidden", text: t("word.layer") }),
    ),
    heads.map((head) => el("th", { role: "columnheader", scope: "col", text: `H${head}` })),
  );
  const rows = page.layers.map((_, layer) => {
    const cells = heads.map((head) => {
      const cell = el(
        "td",
        { role: "gridcell", tabindex: "-1", data: { layer, head } },
        el("span", { class: "value" }),
        " ",
        el("span", { class: "tag" }),
      );
      atlas.cells.push(cell);
      return cell;
    });
    const kind = layerKind(layer);
    const name = el(
      "th",
      { role: "rowheader", scope: "row" },
      `L${layer}`,
      kind ? el("span", { class: "kind", text: kind }) : null,
    );
    return el("tr", { role: "row" }, name, cells);
  });
  const grid = el(
    "table",
    {
      class: `atlas${layerKind(0) ? " kinds" : ""}`,
      role: "grid",
      "aria-label": t("atlas.title"),
      style: { "--heads": page.heads },
    },
    el("thead", { role: "rowgroup" }, top),
    el("tbody", { role: "rowgroup" }, rows),
  );
  grid.addEventListener("keydown", atlasKey);
  grid.addEventListener("click", (event) => openCell(event.target.closest("td")));
  grid.addEventListener("pointerover", (event) => cellTip(event.target.closest("td"), event));
  grid.addEventListener("pointermove", (event) => cellTip(event.target.closest("td"), event));
  grid.addEventListener("pointerleave", () => tip.hide());
  grid.addEventListener("focusin", (event) => event.target.matches("td:focus-visible") && cellTip(event.target, null));
  grid.addEventListener("focusout", () => tip.hide());
  return el("div", { class: "scroll atlas-frame" }, grid);
}

function cellAt(layer, head) {
  return atlas.cells[layer * page.heads + head];
}

function placeOf(cell) {
  return [Number(cell.dataset.layer), Number(cell.dataset.head)];
}

function openCell(cell) {
  if (!cell) return;
  chooseHead(...placeOf(cell), "atlas");
}

// Arrow keys walk the grid; Home and End go along the row, with Ctrl to the corners; Enter opens the card.
function atlasKey(event) {
  const cell = event.target.closest("td");
  if (!cell) return;
  const [layer, head] = placeOf(cell);
  const last = [page.layers.length - 1, page.heads - 1];
  const goals = {
    ArrowUp: [layer - 1, head],
    ArrowDown: [layer + 1, head],
    ArrowLeft: [layer, head - 1],
    ArrowRight: [layer, head + 1],
    Home: [event.ctrlKey ? 0 : layer, 0],
    End: [event.ctrlKey ? last[0] : layer, last[1]],
    PageUp: [0, head],
    PageDown: [last[0], head],
  };
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    chooseHead(layer, head, "keyboard");
  } else if (goals[event.key]) {
    event.preventDefault();
    const [toLayer, toHead] = goals[event.key].map((value, axis) => Math.min(last[axis], Math.max(0, value)));
    moveFocus(toLayer, toHead);
    cellAt(toLayer, toHead).focus();
  } else if (event.key === "Escape") tip.hide();
}

// One cell at a time can be reached with Tab.
function moveFocus(layer, head) {
  for (const cell of atlas.cells) cell.tabIndex = -1;
  cellAt(layer, head).tabIndex = 0;
}

function cellTip(cell, event) {
  if (!cell) return tip.hide();
  const [layer, head] = placeOf(cell);
  const lines = cellLines(layer, head);
  const title = el("strong", { text: `${headName(layer, head)} · ${lines[0]}` });
  return event
    ? tip.show(event.clientX, event.clientY, title, ...lines.slice(1))
    : tip.beside(cell, title, ...lines.slice(1));
}

function cellLines(layer, head) {
  const { view } = atlas;
  const found = view.cell(layer, head);
  const unlabelled = view.code.startsWith("labels") && !isNumber(found.value);
  const first = unlabelled
    ? t(found.tag === "·" && view.code === "labels-none" ? "word.labelled" : "family.unlabelled")
    : inFull(found.value, view.unit);
  const interval = isNumber(found.low)
    ? t("tip.interval", {
        interval: span(found.low, found.high, (value) =>
          view.unit === "points" ? points(value) : view.unit === "share" ? percent(value) : plain(value),
        ),
      })
    : null;
  const cases = isNumber(found.n) ? t("tip.n", { cases: count(found.n) }) : null;
  const numbers = [interval, cases].filter(Boolean).join(" · ");
  return [first, numbers, ...(found.more || [])].filter(Boolean);
}

function paintAtlas() {
  const view = currentView();
  atlas.view = view;
  for (const cell of atlas.cells) {
    const [layer, head] = placeOf(cell);
    const found = view.cell(layer, head);
    paintCell(cell, found, view);
    const name = [headName(layer, head), cell.textContent.trim(), ...cellLines(layer, head)].filter(Boolean).join("; ");
    cell.setAttribute("aria-label", name);
  }
  atlas.legend.replaceChildren(
    el("h3", { text: view.title }),
    legendDrawing(view, 280),
    el("p", { class: "small", text: view.note }),
  );
  atlas.figure.update({
    name: `atlas-${view.code}`,
    caption: t("atlas.caption", { title: view.title, heads: page.heads, layers: page.layers.length }),
  });
  markHead();
}

function paintCell(cell, found, view) {
  const [value, tag] = cell.children;
  const known = isNumber(found.value);
  cell.classList.toggle("empty", !known);
  cell.classList.toggle("marked", Boolean(found.mark));
  value.textContent = known ? inCell(found.value, view) : "";
  tag.textContent = known ? found.tag || "" : found.tag || MISSING;
  const colour = known ? colourAt(shareOf(found.value, view.domain), view.kind) : null;
  setStyle(cell, { "background-color": colour ? css(colour) : "", color: colour ? inkOn(colour) : "" });
}

function markHead() {
  for (const cell of atlas.cells) cell.setAttribute("aria-selected", "false");
  const chosen = cellAt(state.layer, state.head);
  if (!chosen) return;
  chosen.setAttribute("aria-selected", "true");
  moveFocus(state.layer, state.head);
}

function legendDrawing(view, width) {
  const drawing = drawingOf(width, 46, t("legend.alt", { title: view.title }));
  gradientInto(drawing, view, 6, 4, width - 12, 12);
  const x = (value) => 6 + shareOf(value, view.domain) * (width - 12);
  for (const tick of ticks(view.domain, 4)) {
    drawing.append(
      line(x(tick), 16, x(tick), 20, "base"),
      text(
        x(tick),
        31,
        view.unit === "points" ? points(tick).replace(/\.0$/, "") : tickLabel(tick, view.unit),
        `axis ${x(tick) < 20 ? "start" : x(tick) > width - 20 ? "end" : "middle"}`,
      ),
    );
  }
  if (view.baseline && isNumber(view.baseline.value)) {
    const at = x(view.baseline.value);
    drawing.append(
      svg("path", { class: "base-mark", d: `M${round(at)} 1 v18` }),
      text(Math.min(Math.max(at, 60), width - 60), 44, view.baseline.label, "axis middle strong"),
    );
  } else {
    const unit = view.unit === "share" || view.unit === "points" ? "" : named(`unit.${view.unit}`, view.unit);
    if (unit) drawing.append(text(6, 44, unit, "axis start"));
  }
  return drawing;
}

let gradients = 0;

function gradientInto(drawing, view, x, y, width, height) {
  gradients += 1;
  const stops = Array.from({ length: 17 }, (_, i) =>
    svg("stop", { offset: `${(i / 16) * 100}%`, "stop-color": hex(colourAt(i / 16, view.kind)) }),
  );
  const id = `gradient-${gradients}`;
  drawing.append(
    svg("defs", {}, svg("linearGradient", { id }, stops)),
    svg("rect", { x, y, width, height, rx: 2, fill: `url(#${id})` }),
  );
}

// The atlas as a drawing of its own, for SVG and PNG.
function atlasDrawing() {
  const { view } = atlas;
  const [wide, high, left, top] = [54, 40, 40, 96];
  const drawing = drawingOf(left + page.heads * wide + 12, top + page.layers.length * high + 12, view.title);
  byId("atlas-app").append(drawing);
  drawing.append(text(left, 20, `${page.model}: ${view.title}`, "drawing-title"));
  const legend = legendDrawing(view, 280);
  drawing.append(svg("g", { transform: `translate(${left - 6} 26)` }, [...legend.childNodes]));
  for (let head = 0; head < page.heads; head += 1)
    drawing.append(text(left + (head + 0.5) * wide, top - 5, `H${head}`, "axis middle"));
  eachHead((layer, head) => {
    const found = view.cell(layer, head);
    const [x, y] = [left + head * wide, top + layer * high];
    const colour = isNumber(found.value) ? colourAt(shareOf(found.value, view.domain), view.kind) : null;
    if (head === 0) drawing.append(text(left - 8, y + high / 2 + 4, `L${layer}`, "axis end"));
    drawing.append(
      svg("rect", {
        x: x + 1,
        y: y + 1,
        width: wide - 2,
        height: high - 2,
        fill: colour ? hex(colour) : "none",
        stroke: colour ? "none" : "#999",
      }),
    );
    const ink = colour ? inkOn(colour) : isDark() ? "#ddd" : "#555";
    drawing.append(
      text(x + wide / 2, y + 17, colour ? inCell(found.value, view) : "", "drawing-value", { fill: ink }),
      text(x + wide / 2, y + 31, found.tag || "", "drawing-tag", { fill: ink }),
    );
  });
  queueMicrotask(() => drawing.remove());
  return drawing;
}

function atlasTable() {
  const { view } = atlas;
  const columns = [
    ...columnsOf(["word.head.one", "text"]),
    { label: view.title, kind: "number" },
    ...columnsOf(["word.low"], ["word.high"], ["word.n"], ["word.labels", "text"]),
  ];
  const rows = eachHead((layer, head) => {
    const found = view.cell(layer, head);
    const show = (value) => inCell(value, view);
    return [
      headCell(layer, head),
      numberCell(found.value, show),
      numberCell(found.low, show),
      numberCell(found.high, show),
      numberCell(found.n, count),
      { text: labelsOf(layer, head).map(labelText).join("; ") },
    ];
  });
  return { columns, rows };
}
