// The relation view: every head in both directions against the best fixed distance; and the table of all relations.

const relationFigure = { made: null, body: null, redraw: null, controls: null, plots: [] };

function buildRelations() {
  const holder = byId("relations-app");
  if (!page.relations) {
    holder.append(el("p", { class: "notice", text: t("missing.relations") }));
    return;
  }
  relationFigure.controls = el("div", { class: "controls" });
  relationFigure.body = el("div", { class: "chart panels" });
  relationFigure.made = figure({
    name: "relation",
    caption: "",
    body: relationFigure.body,
    drawing: relationDrawing,
    table: relationRows,
  });
  holder.append(relationFigure.controls, relationFigure.made.node);
  relationFigure.redraw = drawToWidth(relationFigure.body, drawRelation);
  on("head", () => relationFigure.redraw());
  on("relation", showRelation);
  showRelation();
}

function showRelation() {
  const { names, kinds } = page.relations;
  const choices = names.map((name, i) => {
    const meaning = gloss(name);
    return {
      value: String(i),
      label: meaning ? `${name} · ${meaning}` : name,
      group: kinds[i] ? t(`family.${kinds[i]}`) : "",
    };
  });
  const scorer = scorerBox((change) => (value) => {
    change(Number(value));
    showRelation();
  });
  relationFigure.controls.replaceChildren(
    ...[
      selectBox(t("best.relation"), choices, String(state.relation), pickRelation, { id: "relation-show" }),
      scorer,
    ].filter(Boolean),
  );
  const one = relationAt(state.relation, 0, 0, 0, state.scorer);
  const meaning = gloss(names[state.relation]);
  relationFigure.made.update({
    name: `relation-${names[state.relation].replaceAll(":", "-")}`,
    caption: t("relations.caption", {
      relation: meaning ? `${names[state.relation]} (${meaning})` : names[state.relation],
      cases: count(one.n),
      baseline: percent(one.baseline),
      offset: signed(one.offset),
    }),
  });
  relationFigure.redraw();
  for (const row of document.querySelectorAll("#table-best tbody tr"))
    row.classList.toggle("chosen", row.dataset.relation === names[state.relation]);
}

function pickRelation(value) {
  state.relation = Number(value);
  if (state.shown.startsWith("relation")) showView(`relation:${value}`);
  else showRelation();
}

function openRelation(relation, direction, scorer) {
  Object.assign(state, { relation, direction, scorer });
  pickRelation(relation);
  byId("relations").scrollIntoView({ block: "start" });
  byId("relation-show").focus({ preventScroll: true });
}

function drawRelation(width) {
  const highs = page.relations.directions.flatMap((_, d) =>
    eachHead((layer, head) => relationAt(state.relation, d, layer, head, state.scorer).high).filter(isNumber),
  );
  const top = Math.min(1, roundUp(1.06 * Math.max(0.1, ...highs)));
  relationFigure.plots = page.relations.directions.map((direction, d) => headPlot(width, direction, d, top));
  relationFigure.body.replaceChildren(...relationFigure.plots);
}

// Heads from left to right by layer, accuracy upwards, whiskers for intervals, the baseline as a line across.
function headPlot(width, direction, d, top) {
  const height = 220;
  const [left, right, upper, lower] = [46, 10, 34, 28];
  const name = page.relations.names[state.relation];
  const found = eachHead((layer, head) => ({
    layer,
    head,
    one: relationAt(state.relation, d, layer, head, state.scorer),
  }));
  const best = [...found]
    .filter(({ one }) => isNumber(one.accuracy))
    .sort((a, b) => b.one.accuracy - a.one.accuracy)[0];
  const alt = best
    ? t("relations.alt", {
        relation: name,
        direction: arrow(direction),
        head: headName(best.layer, best.head),
        accuracy: percent(best.one.accuracy),
        baseline: percent(best.one.baseline),
      })
    : t("word.undefined");
  const drawing = drawingOf(width, height, alt);
  const x = (layer, head) =>
    left + ((layer + (head + 1) / (page.heads + 1)) / page.layers.length) * (width - left - right);
  const y = (value) => upper + (1 - value / top) * (height - upper - lower);
  drawing.append(
    text(0, 14, arrow(direction), "panel-title"),
    width < 420 ? "" : text(arrow(direction).length * 8 + 12, 14, t(`direction.${direction}.short`), "axis start"),
  );
  for (const tick of ticks([0, top], 4))
    drawing.append(
      line(left, y(tick), width - right, y(tick), "grid"),
      text(left - 8, y(tick) + 4, tickLabel(tick, "share"), "axis end"),
    );
  page.layers.forEach((_, layer) => {
    const from = left + (layer / page.layers.length) * (width - left - right);
    if (layer) drawing.append(line(from, upper, from, height - lower, "divide"));
    const skip = Math.ceil(page.layers.length / ((width - left) / 30));
    if (layer % skip === 0)
      drawing.append(
        text(from + (width - left - right) / page.layers.length / 2, height - 10, `L${layer}`, "axis middle"),
      );
  });
  for (const { layer, head, one } of found) {
    if (!isNumber(one.accuracy)) continue;
    if (isNumber(one.low))
      drawing.append(line(x(layer, head), y(one.low), x(layer, head), y(Math.min(one.high, top)), "whisker"));
  }
  for (const { layer, head, one } of found) {
    if (!isNumber(one.accuracy)) continue;
    const chosen = layer === state.layer && head === state.head;
    const dot = svg("circle", {
      cx: round(x(layer, head)),
      cy: round(y(one.accuracy)),
      r: chosen ? 5 : 3.4,
      class: `dot${passes(one) ? " passed" : ""}${chosen ? " chosen" : ""}`,
    });
    drawing.append(dot);
  }
  if (best && isNumber(best.one.baseline)) {
    const at = y(best.one.baseline);
    drawing.append(
      line(left, at, width - right, at, "baseline"),
      text(
        width - right,
        at - 5,
        t("legend.baseline", { value: percent(best.one.baseline), offset: signed(best.one.offset) }),
        "axis end strong halo",
      ),
    );
  }
  if (best)
    drawing.append(
      text(
        clamp(x(best.layer, best.head), left + 20, width - 24),
        y(best.one.accuracy) - 9,
        headName(best.layer, best.head),
        "axis middle strong halo",
      ),
    );
  nearest(
    drawing,
    found.filter(({ one }) => isNumber(one.accuracy)),
    (item) => [x(item.layer, item.head), y(item.one.accuracy)],
    (item) => [
      el("strong", { text: `${headName(item.layer, item.head)} · ${percent(item.one.accuracy, 2)}` }),
      t("tip.interval", { interval: span(item.one.low, item.one.high, percent) }) +
        (isNumber(item.one.n) ? ` · ${t("tip.n", { cases: count(item.one.n) })}` : ""),
      ...relationLines(item.one),
    ],
  );
  return drawing;
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), Math.max(low, high));
}

// The item closest to the pointer speaks; a click opens its head.
function nearest(drawing, items, where, lines) {
  let at = null;
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const near = items
      .map((item) => [item, ...where(item)])
      .map(([item, x, y]) => [item, (x - px) ** 2 + ((y - py) / 3) ** 2])
      .sort((a, b) => a[1] - b[1])[0];
    at = near && near[1] < 700 ? near[0] : null;
    if (at) tip.show(event.clientX, event.clientY, ...lines(at));
    else tip.hide();
    drawing.classList.toggle("pointing", Boolean(at));
  });
  drawing.addEventListener("pointerleave", () => tip.hide());
  drawing.addEventListener("click", () => at && chooseHead(at.layer, at.head, "atlas-far"));
}

// Both panels in one drawing, for SVG and PNG.
function relationDrawing() {
  const plots = relationFigure.plots;
  const width = sizeOf(plots[0]).width;
  const height = sizeOf(plots[0]).height;
  const whole = drawingOf(width, height * plots.length + 26, "");
  relationFigure.body.append(whole);
  whole.append(text(0, 16, `${page.model}: ${page.relations.names[state.relation]}`, "drawing-title"));
  plots.forEach((plot, i) =>
    whole.append(svg("g", { transform: `translate(0 ${26 + i * height})` }, [...plot.cloneNode(true).childNodes])),
  );
  queueMicrotask(() => whole.remove());
  return whole;
}

function relationRows() {
  const columns = columnsOf(
    ["word.head.one", "text"],
    ["word.direction", "text"],
    ["best.accuracy"],
    ["word.low"],
    ["word.high"],
    ["word.n"],
    ["best.baseline"],
    ["best.gain"],
    ["card.gain.low"],
    ["card.gain.high"],
    ["best.p"],
    ["relations.all"],
    ["relations.ties"],
    ["relations.no_mass"],
  );
  const rows = page.relations.directions.flatMap((direction, d) =>
    eachHead((layer, head) => {
      const one = relationAt(state.relation, d, layer, head, state.scorer);
      return [
        headCell(layer, head),
        { text: arrow(direction), value: direction },
        ...[one.accuracy, one.low, one.high].map((value) => numberCell(value, percent)),
        numberCell(one.n, count),
        numberCell(one.baseline, percent),
        ...[one.difference, one.differenceLow, one.differenceHigh].map((value) => numberCell(value, points)),
        numberCell(one.p, pValue),
        numberCell(one.all.accuracy, percent),
        numberCell(one.ties, count),
        numberCell(one.noMass, count),
      ];
    }),
  );
  return { columns, rows };
}

// The table that came with the page: sorting, the filter, the way from a relation to its figure.
function enhanceBest() {
  const table = byId("table-best");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  for (const row of rows) {
    const cell = row.cells[0];
    row.dataset.relation = cell.dataset.relation;
    const place = page.relations ? page.relations.names.indexOf(cell.dataset.relation) : -1;
    if (place >= 0)
      cell.replaceChildren(
        button(cell.dataset.relation, () => openRelation(place, state.direction, state.scorer), { class: "link" }),
      );
  }
  const few = rows.filter((row) => row.classList.contains("few")).length;
  const search = el("input", { type: "search", placeholder: t("best.filter.hint"), input: () => filter() });
  const all = el("input", { type: "checkbox", change: () => filter() });
  const shown = el("p", { class: "small hidden-mass", role: "status" });
  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of rows)
      row.hidden = (row.classList.contains("few") && !all.checked) || !row.textContent.toLowerCase().includes(wanted);
    shown.textContent = t("best.shown", { shown: rows.filter((row) => !row.hidden).length, of: rows.length });
  };
  const every = few ? el("label", { class: "check" }, all, el("span", { text: t("best.few", { n: few }) })) : null;
  byId("best-tools").append(
    el(
      "div",
      { class: "controls" },
      el("label", { class: "field" }, el("span", { text: t("best.filter") }), search),
      every,
      shown,
    ),
  );
  if (few === rows.length) all.checked = true;
  filter();
}
