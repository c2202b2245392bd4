// How labels and entropy move with depth.

function buildLayers() {
  const holder = byId("layers-app");
  const parts = [
    page.labels && familyFigure(),
    page.measures.some((measure) => measure.name === "entropy" && measure.group === "metrics") && entropyFigure(),
  ].filter(Boolean);
  if (!page.labels) holder.append(el("p", { class: "notice", text: t("missing.labels") }));
  if (parts.length) holder.append(el("div", { class: "duo wide" }, parts));
  if (page.layers.length && !measureNamed("entropy"))
    holder.append(el("p", { class: "notice", text: t("layers.no_entropy") }));
}

const SHOWN_FAMILIES = [...FAMILIES, "unlabelled"];

// Heads of a layer with a label of each family; a head with several labels counts in each.
function familyCounts() {
  return SHOWN_FAMILIES.map((family) => ({
    family,
    counts: page.layers.map(
      (_, layer) =>
        Array.from({ length: page.heads }, (_, head) => head).filter((head) =>
          family === "unlabelled" ? !findingsOf(layer, head).labels.length : labelsOf(layer, head, family).length,
        ).length,
    ),
  }));
}

function familyFigure() {
  const found = familyCounts();
  const body = el("div", { class: "chart" });
  const alt = t("layers.families.alt", {
    list: found.map(({ family, counts }) => `${t(`family.${family}`)}: ${counts.join(", ")}`).join("; "),
  });
  let drawing = null;
  drawToWidth(body, (width) => body.replaceChildren((drawing = familyDrawing(width, found, alt))));
  const table = () => ({
    columns: [
      ...columnsOf(["word.layer", "text"]),
      ...found.map(({ family }) => ({ label: t(`family.${family}`), kind: "number" })),
    ],
    rows: page.layers.map((_, layer) => [
      { text: `L${layer}` },
      ...found.map(({ counts }) => numberCell(counts[layer], count)),
    ]),
  });
  return el(
    "section",
    {},
    el("h3", { text: t("layers.families") }),
    figure({
      name: "families-by-layer",
      caption: t("layers.families.caption", { heads: page.heads }),
      body,
      drawing: () => drawing,
      table,
    }).node,
  );
}

function familyDrawing(width, found, alt) {
  const [left, pitch, upper] = [96, 52, 8];
  const drawing = drawingOf(width, upper + found.length * pitch + 24, alt);
  const step = (width - left - 8) / page.layers.length;
  const skip = Math.ceil(page.layers.length / ((width - left) / 26));
  found.forEach(({ family, counts }, row) => {
    const floor = upper + (row + 1) * pitch - 8;
    const tried = !["syntax", "semantics"].includes(family) || (page.relations?.kinds || []).includes(family);
    drawing.append(
      text(left - 10, floor - 8, t(`family.${family}`), "axis end"),
      line(left, floor, width - 8, floor, "grid"),
    );
    if (!tried) drawing.append(text(left + 6, floor - 8, t("layers.not_tried"), "axis start"));
    counts.forEach((value, layer) => {
      if (!tried) return;
      const x = left + layer * step;
      const high = (value / page.heads) * (pitch - 22);
      const mark = svg(
        "g",
        { class: `bar${family === "unlabelled" ? " faint" : ""}` },
        svg("rect", {
          x: round(x + step * 0.12),
          y: round(floor - high),
          width: round(step * 0.76),
          height: round(high),
        }),
      );
      hover(mark, () => [
        el("strong", { text: `L${layer} · ${t(`family.${family}`)}` }),
        t("layers.of", { n: value, heads: page.heads }),
      ]);
      drawing.append(mark);
      if (skip === 1) drawing.append(text(x + step / 2, floor - high - 4, value ? String(value) : "·", "axis middle"));
    });
  });
  page.layers.forEach(
    (_, layer) =>
      layer % skip === 0 &&
      drawing.append(text(left + (layer + 0.5) * step, upper + found.length * pitch + 12, `L${layer}`, "axis middle")),
  );
  return drawing;
}

// Entropy of every head, layer by layer, with the mean of the layer.
function entropyFigure() {
  const measure = measureNamed("entropy");
  const place = measure.dims.map(() => 0);
  const values = page.layers.map((_, layer) =>
    Array.from({ length: page.heads }, (_, head) => measure.value.at(layer, head, ...place)),
  );
  const means = values.map((row) => mean(row.filter(isNumber)));
  const body = el("div", { class: "chart" });
  const alt = t("layers.entropy.alt", { list: means.map((value, layer) => `L${layer} ${plain(value)}`).join(", ") });
  let drawing = null;
  const draw = (width) => body.replaceChildren((drawing = entropyDrawing(width, values, means, measure.unit, alt)));
  const redraw = drawToWidth(body, draw);
  on("head", redraw);
  const table = () => ({
    columns: [...columnsOf(["word.head.one", "text"]), { label: t("metric.entropy"), kind: "number" }],
    rows: eachHead((layer, head) => [headCell(layer, head), numberCell(values[layer][head])]),
  });
  return el(
    "section",
    {},
    el("h3", { text: t("layers.entropy") }),
    figure({ name: "entropy-by-layer", caption: t("layers.entropy.caption"), body, drawing: () => drawing, table })
      .node,
  );
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;
}

function entropyDrawing(width, values, means, unit, alt) {
  const [left, right, upper, lower, height] = [46, 8, 12, 28, 344];
  const known = values.flat().filter(isNumber);
  const top = roundUp(Math.max(...known, 0.1));
  const drawing = drawingOf(width, height, alt);
  const step = (width - left - right) / page.layers.length;
  const y = (value) => upper + (1 - value / top) * (height - upper - lower);
  const x = (layer, head) => left + step * (layer + 0.15 + 0.7 * ((head + 0.5) / page.heads));
  for (const tick of ticks([0, top], 5))
    drawing.append(
      line(left, y(tick), width - right, y(tick), "grid"),
      text(left - 8, y(tick) + 4, tickLabel(tick, unit), "axis end"),
    );
  drawing.append(text(left - 8, y(0) + 22, named(`unit.${unit}`, unit), "axis end"));
  const skip = Math.ceil(page.layers.length / ((width - left) / 30));
  const items = [];
  values.forEach((row, layer) => {
    if (layer % skip === 0) drawing.append(text(left + step * (layer + 0.5), height - 8, `L${layer}`, "axis middle"));
    if (isNumber(means[layer]))
      drawing.append(
        line(left + step * (layer + 0.08), y(means[layer]), left + step * (layer + 0.92), y(means[layer]), "mean"),
      );
    row.forEach((value, head) => {
      if (!isNumber(value)) return;
      const chosen = layer === state.layer && head === state.head;
      items.push({ layer, head, value });
      drawing.append(
        svg("circle", {
          cx: round(x(layer, head)),
          cy: round(y(value)),
          r: chosen ? 5 : 3.2,
          class: `dot passed${chosen ? " chosen" : ""}`,
        }),
      );
    });
  });
  nearest(
    drawing,
    items,
    (item) => [x(item.layer, item.head), y(item.value)],
    (item) => [
      el("strong", { text: `${headName(item.layer, item.head)} · ${quantity(item.value, unit)}` }),
      t("layers.mean", { value: plain(means[item.layer]) }),
    ],
  );
  return drawing;
}
