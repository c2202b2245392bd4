// What can be read off one head's vectors, and how much the model depends on the head.

const probeState = { site: 0 };
const KINDS_OF_IMPORTANCE = ["ablation_zero", "ablation_mean", "ablation_uniform", "gradient", "gradient_normalised"];

// Accuracy of each probe as a bar, with what it must be held against: the control task and the commonest class.
function probeBlock(layer, head) {
  const accuracy = measureNamed("accuracy", "probes");
  const tasks = accuracy?.dims.findIndex((dim) => dim.name === "task") ?? -1;
  if (tasks < 0) return [];
  const sites = accuracy.dims.findIndex((dim) => dim.name === "site");
  const names = sites < 0 ? [""] : accuracy.dims[sites].values;
  const usual = names.indexOf("context");
  if (probeState.site >= names.length || !probeState.chosen) probeState.site = Math.max(0, usual);
  const body = el("div", { class: "chart" });
  let drawing = null;
  const items = () => probeItems(accuracy, tasks, sites, layer, head);
  const alt = () =>
    t("probes.alt", { head: headName(layer, head), list: highest(items(), "card.target.item"), site: siteName(names) });
  const redraw = drawToWidth(body, (width) =>
    body.replaceChildren((drawing = probeDrawing(width, items(), alt()))),
  );
  const table = () => probeTable(accuracy, tasks, sites, layer, head);
  const name = `probes-${headName(layer, head)}`;
  const caption = `${t("probes.caption")}${t("list.sentence")}${probeIntervals()}`;
  const made = figure({ name, caption, body, drawing: () => drawing, table });
  const choose = (value) => {
    Object.assign(probeState, { site: Number(value), chosen: true });
    redraw();
  };
  const choices = names.map((site, i) => ({ value: String(i), label: named(`value.${site}`, site) }));
  const box = names.length > 1 ? selectBox(t("dim.site"), choices, String(probeState.site), choose) : null;
  return [block("group.probes", box, made.node)];
}

// What the intervals of accuracy, control and selectivity cover; with the numbers of seeds and documents where the study has them.
function probeIntervals() {
  const { seeds, clusters, cluster } = page.probing;
  return t("probes.interval", {
    cluster: t(`cluster.${cluster}`),
    seeds: isNumber(seeds) ? t("probes.interval.seeds", { n: seeds }) : "",
    clusters: isNumber(clusters) ? t("probes.interval.clusters", { n: clusters }) : "",
  });
}

function siteName(names) {
  return named(`value.${names[probeState.site]}`, names[probeState.site]);
}

function ofTask(name) {
  return page.context.find((one) => one.group === "probes" && one.name === name);
}

function probeItems(accuracy, tasks, sites, layer, head) {
  const control = measureNamed("control", "probes");
  const [majority, n] = ["majority", "n"].map(ofTask);
  return accuracy.dims[tasks].values.map((task, i) => {
    const place = accuracy.dims.map((_, axis) => (axis === tasks ? i : axis === sites ? probeState.site : 0));
    const item = { label: named(`task.${task}`, task), ...readMeasure(accuracy, place, layer, head) };
    const same = control && control.dims.length === accuracy.dims.length;
    item.control = same ? readMeasure(control, place, layer, head).value : NaN;
    item.majority = majority ? majority.value.at(i) : NaN;
    item.tip = () => [
      el("strong", { text: `${item.label}: ${percent(item.value)}` }),
      isNumber(item.low) ? t("tip.interval", { interval: span(item.low, item.high, percent) }) : null,
      isNumber(item.control) ? `${named("metric.control", "control")}: ${percent(item.control)}` : null,
      isNumber(item.majority) ? `${named("metric.majority", "majority")}: ${percent(item.majority)}` : null,
      n ? t("tip.n", { cases: count(n.value.at(i)) }) : null,
    ];
    return item;
  });
}

function probeDrawing(width, items, alt) {
  const drawing = lyingBars(width, items, { unit: "share", top: 1, label: alt });
  const { left, x, middle } = lyingPlan(width, items, 1);
  items.forEach((item, i) => {
    const at = middle(i);
    if (isNumber(item.majority)) drawing.append(line(x(item.majority), at - 10, x(item.majority), at + 10, "bold-tick"));
    if (isNumber(item.control)) {
      const [cx, size] = [round(Math.max(left, x(item.control))), 5];
      drawing.append(svg("path", { class: "diamond", d: `M${cx} ${at - size} l${size} ${size} l${-size} ${size} l${-size} ${-size} z` }));
    }
  });
  return drawing;
}

function probeTable(accuracy, tasks, sites, layer, head) {
  const names = ["accuracy", "control", "selectivity", "compression"];
  const measures = names.map((name) => measureNamed(name, "probes")).filter(Boolean);
  const whole = measures.filter((measure) => measure.dims.length === accuracy.dims.length);
  const places = product(accuracy.dims.map((dim) => dim.values.length));
  const random = randomColumns(accuracy, layer, head);
  const shown = (measure) => (measure.unit === "share" || measure.name === "selectivity" ? percent : plain);
  const columns = [
    ...columnsOf(["dim.task", "text"]),
    ...(sites < 0 ? [] : columnsOf(["dim.site", "text"])),
    ...whole.map((measure) => ({ label: metricName(measure.name), kind: "number" })),
    ...random.columns,
    ...columnsOf(["metric.majority"], ["word.n"]),
  ];
  const [majority, n] = ["majority", "n"].map(ofTask);
  const rows = places.map((place) => [
    { text: named(`task.${accuracy.dims[tasks].values[place[tasks]]}`, accuracy.dims[tasks].values[place[tasks]]) },
    ...(sites < 0 ? [] : [{ text: coordinateLabel(accuracy.dims[sites], place[sites]) }]),
    ...whole.map((measure) => {
      const one = readMeasure(measure, place, layer, head);
      const note = isNumber(one.low) ? span(one.low, one.high, shown(measure)) : "";
      return { ...numberCell(one.value, shown(measure)), note };
    }),
    ...random.cells(place),
    numberCell(majority ? majority.value.at(place[tasks]) : NaN, percent),
    numberCell(n ? n.value.at(place[tasks]) : NaN, count),
  ]);
  return { columns, rows };
}

// Accuracy of the same probe on models with random weights, a column for each kind of them; none where the study has none.
function randomColumns(accuracy, layer, head) {
  const measure = measureNamed("random", "probes");
  if (!measure || measure.dims[0].name !== "weights") return { columns: [], cells: () => [] };
  const kinds = measure.dims[0].values;
  const axis = (dim) => accuracy.dims.findIndex((one) => one.name === dim.name);
  return {
    columns: kinds.map((kind) => ({
      label: t("probes.random", { weights: named(`value.${kind}`, kind) }),
      kind: "number",
    })),
    cells: (place) =>
      kinds.map((_, i) => {
        const at = measure.dims.map((dim, j) => (j ? place[axis(dim)] : i));
        return numberCell(readMeasure(measure, at, layer, head).value, percent);
      }),
  };
}

// What happens to the model's output without the head, and where that stands among all heads.
function importanceBlock(layer, head) {
  const found = KINDS_OF_IMPORTANCE.map((name) => measureNamed(name, "importance")).filter(
    (measure) => measure && !measure.dims.length,
  );
  if (!found.length) return [];
  const rows = found.map((measure) => {
    const one = readMeasure(measure, [], layer, head);
    const all = eachHead((l, h) => measure.value.at(l, h)).filter(isNumber);
    const rank = all.filter((other) => other > one.value).length + 1;
    return [
      { text: metricName(measure.name) },
      { ...numberCell(one.value, small), note: isNumber(one.low) ? span(one.low, one.high, small) : "" },
      isNumber(one.value)
        ? { text: t("card.rank.short", { rank, of: all.length }), value: rank }
        : { text: MISSING, value: "" },
    ];
  });
  const columns = columnsOf(["importance.kind", "text"], ["importance.change"], ["importance.rank"]);
  const watched = page.importance?.quantity;
  const caption = watched ? t("importance.caption", { quantity: named(`quantity.${watched}`, watched), n: count(page.importance.n) }) : t("group.importance");
  const table = dataTable(`importance-${headName(layer, head)}`, caption, columns, rows, "compact");
  return [block("group.importance", table)];
}
