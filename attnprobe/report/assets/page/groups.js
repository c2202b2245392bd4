// Groups of a study that this page has no drawing of its own for: their numbers at one head, each kind of number once.

const LONG = 6;
const ROWS_SHOWN = 30;
const COLUMNS_SHOWN = 5;
// What a table shows first, where there is more than fits: a result beside what it must be held against.
const COLUMNS_FIRST = ["accuracy", "control", "selectivity", "majority", "ceiling"];

// Groups that have a block of their own, or none: controls stand beside the labels, the rest of them in the atlas.
const OWN_BLOCKS = new Set(["metrics", "histograms", "patterns", "probes", "importance", "clusters"]);

function otherBlocks(layer, head) {
  const groups = [...new Set(page.measures.map((measure) => measure.group))].filter(
    (group) => !OWN_BLOCKS.has(group) && !group.startsWith("controls"),
  );
  return groups.map((group) => {
    const alike = new Map();
    for (const measure of page.measures.filter((one) => one.group === group)) {
      const key = measure.dims.map((dim) => dim.name).join(" ");
      alike.set(key, [...(alike.get(key) || []), measure]);
    }
    const parts = [...alike.values()].flatMap((measures) => groupPart(measures, layer, head));
    return el("section", { class: "block" }, el("h4", { text: groupName(group) }), ...parts);
  });
}

// Measures over the same dimensions: single numbers as lines, one long dimension as bars, anything else as a table.
function groupPart(measures, layer, head) {
  const { dims } = measures[0];
  if (!dims.length) return measures.map((measure) => singleNumber(measure, layer, head));
  const places = product(dims.map((dim) => dim.values.length));
  if (dims.length === 1 && places.length > LONG) return measures.map((measure) => histogram(measure, layer, head));
  if (places.length > ROWS_SHOWN) {
    const names = measures.map((measure) => metricName(measure.name)).join(t("list.comma"));
    return el("p", { class: "quiet", text: t("card.many", { names, n: places.length }) });
  }
  return jointTable(measures, places, layer, head);
}

function metricName(name) {
  return named(`metric.${name}`, name);
}

function shownAs(unit) {
  return unit === "share" ? percent : plain;
}

function readMeasure(measure, place, layer, head) {
  const read = (part) => (measure[part] ? measure[part].at(layer, head, ...place) : NaN);
  return { value: read("value"), low: read("low"), high: read("high"), n: read("count") };
}

function singleNumber(measure, layer, head) {
  const one = readMeasure(measure, [], layer, head);
  const interval = isNumber(one.low) ? ` (${span(one.low, one.high, shownAs(measure.unit))})` : "";
  return el(
    "p",
    {},
    `${metricName(measure.name)}: `,
    el("strong", { text: quantity(one.value, measure.unit) }),
    interval,
  );
}

function jointTable(measures, places, layer, head) {
  const { dims, group } = measures[0];
  const beside = page.context.filter((one) => one.group === group && dims.some((dim) => dim.name === one.dim));
  const rank = ({ name }) => (COLUMNS_FIRST.includes(name) ? COLUMNS_FIRST.indexOf(name) : COLUMNS_FIRST.length);
  const all = [...measures, ...beside].sort((a, b) => rank(a) - rank(b));
  const build = (shown) => {
    const columns = [
      ...dims.map((dim) => ({ label: named(`dim.${dim.name}`, dim.name), kind: "text" })),
      ...shown.map((one) => ({ label: metricName(one.name), kind: "number" })),
    ];
    const rows = places.map((place) => [
      ...place.map((i, axis) => ({ text: coordinateLabel(dims[axis], i) })),
      ...shown.map((one) => (one.dims ? measureCell(one, place, layer, head) : contextCell(one, dims, place))),
    ]);
    return dataTable(`${group}-${headName(layer, head)}`, groupName(group), columns, rows, "compact", "hidden");
  };
  if (all.length <= COLUMNS_SHOWN) return build(all);
  const more = el("details", {}, el("summary", { text: t("card.all_columns", { n: all.length }) }));
  more.addEventListener("toggle", () => more.open && more.children.length < 2 && more.append(build(all)));
  return [build(all.slice(0, COLUMNS_SHOWN)), more];
}

function measureCell(measure, place, layer, head) {
  const one = readMeasure(measure, place, layer, head);
  const show = shownAs(measure.unit);
  return { ...numberCell(one.value, show), note: isNumber(one.low) ? span(one.low, one.high, show) : "" };
}

function contextCell(one, dims, place) {
  return numberCell(one.value.at(place[dims.findIndex((dim) => dim.name === one.dim)]), shownAs(one.unit));
}

function histogram(measure, layer, head) {
  const [dim] = measure.dims;
  const name = metricName(measure.name);
  const items = dim.values.map((label, i) => ({ label, ...readMeasure(measure, [i], layer, head) }));
  const top = roundUp(Math.max(...items.map((item) => item.value || 0)));
  for (const item of items) {
    item.tip = () => [el("strong", { text: `${item.label}: ${quantity(item.value, measure.unit)}` })];
  }
  const body = el("div", { class: "chart" });
  let drawing = null;
  const options = { unit: measure.unit, top, label: name, every: Math.ceil(items.length / 6) };
  drawToWidth(body, (width) => body.replaceChildren((drawing = barChart(width, 140, items, options))));
  const table = () => ({
    columns: [
      { label: named(`dim.${dim.name}`, dim.name), kind: "text" },
      { label: name, kind: "number" },
    ],
    rows: items.map((item) => [{ text: item.label }, numberCell(item.value)]),
  });
  const code = `${measure.name}-${headName(layer, head)}`;
  return figure({ name: code, caption: name, body, drawing: () => drawing, table }).node;
}

// All index tuples of a shape: product([2, 3]) has six.
function product(shape) {
  return shape.reduce((found, n) => found.flatMap((place) => Array.from({ length: n }, (_, i) => [...place, i])), [[]]);
}
