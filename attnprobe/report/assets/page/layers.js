// How position, syntax, semantics and single measures move with depth.

function buildLayers() {
  const holder = byId("layers-app");
  const options = page.layers.length ? depthOptions() : [];
  const parts = [page.labels && familyFigure(), options.length && depthFigure(options)].filter(Boolean);
  if (!page.labels) holder.append(el("p", { class: "notice", text: t("missing.labels") }));
  if (parts.length) holder.append(el("div", { class: "duo wide" }, parts));
  const focus = focusNote();
  if (focus) holder.append(focus);
  if (!options.length) holder.append(el("p", { class: "notice", text: t("missing.metrics") }));
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

// One number of every head, layer by layer, with the mean of the layer: entropy first, and whatever else tells of depth.
function depthFigure(options) {
  const body = el("div", { class: "chart" });
  const shown = { option: options[0], drawing: null };
  const readings = () =>
    page.layers.map((_, layer) => Array.from({ length: page.heads }, (_, head) => shown.option.at(layer, head)));
  const draw = (width) => {
    const values = readings();
    const means = values.map((row) => mean(row.filter(isNumber)));
    const { title, unit } = shown.option;
    const list = means.map((value, layer) => `L${layer} ${quantity(value, unit)}`).join(t("list.comma"));
    shown.drawing = depthDrawing(width, values, means, unit, t("layers.depth.alt", { title, list }));
    body.replaceChildren(shown.drawing);
  };
  const redraw = drawToWidth(body, draw);
  on("head", redraw);
  const table = () => ({
    columns: [...columnsOf(["word.head.one", "text"]), { label: shown.option.title, kind: "number" }],
    rows: eachHead((layer, head) => [headCell(layer, head), numberCell(shown.option.at(layer, head))]),
  });
  const about = ({ title, note }) => [t("layers.depth.caption", { title }), note].filter(Boolean).join(t("list.sentence"));
  const name = (option) => `${fileSafe(option.code)}-by-layer`;
  const made = figure({ name: "depth", caption: about(shown.option), body, drawing: () => shown.drawing, table });
  made.update({ name: name(shown.option) });
  const choose = (place) => {
    shown.option = options[Number(place)];
    redraw();
    made.update({ name: name(shown.option), caption: about(shown.option) });
  };
  const choices = options.map((option, i) => ({ value: String(i), label: option.title, group: option.group }));
  const box = selectBox(t("layers.measure"), choices, "0", choose, { id: "depth-show" });
  const controls = options.length > 1 ? el("div", { class: "controls" }, box) : null;
  return el("section", {}, el("h3", { text: t("layers.depth") }), controls, made.node);
}

// What can be followed over the layers: position, syntax and semantics first, then single numbers, then probes.
function depthOptions() {
  const options = [];
  const metrics = t("group.metrics");
  for (const measure of page.measures) {
    const single = measure.dims.every((dim) => dim.name === "sinks");
    if (!single || !["metrics", "trees", "importance"].includes(measure.group)) continue;
    const place = measure.dims.map(() => 0);
    const title = measureTitle(measure);
    const option = { code: measure.name, title, unit: measure.unit, group: groupName(measure.group) };
    options.push({ ...option, note: named(`metric.${measure.name}.depth`, ""), at: (l, h) => measure.value.at(l, h, ...place) });
  }
  options.sort((a, b) => (b.code === "entropy") - (a.code === "entropy") || (b.group === metrics) - (a.group === metrics));
  return [...options.slice(0, 1), ...familyOptions(), ...options.slice(1), ...probeOptions()];
}

// How strongly each head shows a family: its strongest fixed offset, and the gain of the relation it follows best (chosen on select).
function familyOptions() {
  const group = t("atlas.group.labels");
  const found = [];
  const offset = measureNamed("offset_argmax");
  if (offset) {
    const axis = offset.dims.findIndex((dim) => dim.name === "offset");
    const at = (l, h) =>
      Math.max(...offset.dims[axis].values.map((_, i) => offset.value.at(l, h, ...offset.dims.map((_, d) => (d === axis ? i : 0)))));
    found.push({ code: "position", title: t("layers.position"), note: t("layers.position.note"), unit: "share", group, at });
  }
  for (const family of ["syntax", "semantics"]) {
    const r = page.relations;
    const own = (r?.kinds || []).flatMap((kind, i) => (kind === family ? [i] : []));
    if (!own.length) continue;
    const at = (l, h) => bestGain(own, l, h);
    found.push({ code: family, title: t(`layers.${family}`), note: t("layers.gain.note"), unit: "points", group, at });
  }
  return found;
}

function bestGain(relations, layer, head) {
  const r = page.relations;
  let [best, gain] = [-Infinity, NaN];
  for (const relation of relations)
    for (let d = 0; d < r.directions.length; d += 1) {
      const one = relationAt(relation, d, layer, head, 0);
      const chosen = isNumber(one.select.accuracy) ? one.select.accuracy - one.select.baseline : one.difference;
      if (one.n >= r.minimum_n && chosen > best) [best, gain] = [chosen, one.difference];
    }
  return gain;
}

function probeOptions() {
  const accuracy = measureNamed("accuracy", "probes");
  const axis = accuracy?.dims.findIndex((dim) => dim.name === "task") ?? -1;
  if (axis < 0) return [];
  const site = accuracy.dims.find((dim) => dim.name === "site");
  const usual = Math.max(0, site ? site.values.indexOf("context") : 0);
  return accuracy.dims[axis].values.map((task, i) => {
    const place = accuracy.dims.map((dim, d) => (d === axis ? i : dim === site ? usual : 0));
    const title = t("layers.probe", { task: named(`task.${task}`, task) });
    return { code: `probe-${task}`, title, unit: "share", group: t("group.probes"), at: (l, h) => accuracy.value.at(l, h, ...place) };
  });
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;
}

function depthDrawing(width, values, means, unit, alt) {
  const [left, right, upper, lower, height] = [46, 8, 12, 28, 344];
  const known = values.flat().filter(isNumber);
  const top = Math.min(unit === "share" ? 1 : Infinity, roundUp(Math.max(...known, unit === "share" ? 0.05 : 1e-9)));
  const least = Math.min(...known, 0);
  const bottom = least < 0 ? -roundUp(-least) : 0;
  const show = (value) => (unit === "points" ? points(value) : quantity(value, unit));
  const drawing = drawingOf(width, height, alt);
  const step = (width - left - right) / page.layers.length;
  const y = (value) => upper + ((top - value) / (top - bottom || 1)) * (height - upper - lower);
  const x = (layer, head) => left + step * (layer + 0.15 + 0.7 * ((head + 0.5) / page.heads));
  for (const tick of ticks([bottom, top], 5))
    drawing.append(
      line(left, y(tick), width - right, y(tick), "grid"),
      text(left - 8, y(tick) + 4, unit === "points" ? points(tick).replace(/\.0$/, "") : tickLabel(tick, unit), "axis end"),
    );
  if (bottom < 0) drawing.append(line(left, y(0), width - right, y(0), "base"));
  if (!["share", "1", ""].includes(unit)) drawing.append(text(left - 8, height - 8, named(`unit.${unit}`, unit), "axis end"));
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
      el("strong", { text: `${headName(item.layer, item.head)} · ${show(item.value)}` }),
      t("layers.mean", { value: show(means[item.layer]) }),
    ],
  );
  return drawing;
}
