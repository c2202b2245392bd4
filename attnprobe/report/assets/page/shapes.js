// What one head's patterns look like: distributions, the class of its pattern with a picture, and the heads most like it.

// Distance and entropy over the whole corpus; a bin runs from its value to the next.
function histogramBlock(layer, head) {
  const found = page.measures.filter((measure) => measure.group === "histograms" && measure.dims.length === 1);
  const wanted = ["distance", "entropy"].map((name) => found.find((measure) => measure.name === name)).filter(Boolean);
  if (!wanted.length) return [];
  return [el("div", { class: "duo" }, wanted.map((measure) => binFigure(measure, layer, head)))];
}

function binLabel(values, i) {
  const [from, to] = [Number(values[i]), Number(values[i + 1])];
  if (!isNumber(from)) return named(`value.${values[i]}`, values[i]);
  if (i === values.length - 1) return t("bin.open", { from: values[i] });
  return Number.isInteger(from) && to - from === 1 ? values[i] : t("bin.range", { from: values[i], to: upTo(from, to) });
}

// Whole numbers end one below the next bin; others at it.
function upTo(from, to) {
  return Number.isInteger(from) && Number.isInteger(to) ? to - 1 : to;
}

function binFigure(measure, layer, head) {
  if (!measure.unit.startsWith("share")) return histogram(measure, layer, head);
  const { values } = measure.dims[0];
  const whole = values.every((value) => Number.isInteger(Number(value)));
  const items = values.map((value, i) => ({
    label: whole ? binLabel(values, i) : value,
    full: binLabel(values, i),
    ...readMeasure(measure, [i], layer, head),
  }));
  while (items.length > 8 && !(items.at(-1).value >= 0.0005)) items.pop();
  const key = `card.histogram.${measure.name}`;
  const most = highest(items.map((item) => ({ ...item, label: item.full })), "card.target.item");
  const alt = t(`${key}.alt`, { head: headName(layer, head), list: most });
  const top = Math.min(1, roundUp(Math.max(...items.map((item) => item.value || 0), 0.05)));
  const draw = (width, label) => {
    const every = Math.max(1, Math.ceil(items.length / (width / 44)));
    return barChart(width, 150, items, { unit: "share", top, label, every });
  };
  return barFigure(`${measure.name}-distribution-${headName(layer, head)}`, key, items, alt, draw);
}

// The class of the head's pattern, what it is made of, and the pattern in one sentence.
function shapeBlock(layer, head) {
  const features = page.measures.filter(({ group, name }) => group === "patterns" && !name.endsWith("_even"));
  if (!features.length && !page.examples.length) return [];
  const parts = [];
  const kind = page.classes?.[layer]?.[head];
  if (kind)
    parts.push(
      el("p", {}, el("strong", { text: named(`shape.${kind}`, kind) }), ` ${named(`shape.${kind}.meaning`, "")}`),
    );
  const known = features.filter((measure) => isNumber(readMeasure(measure, [], layer, head).value));
  if (known.length) parts.push(featureTable(known, layer, head));
  if (page.examples.length) parts.push(samplePattern(layer, head));
  else parts.push(el("p", { class: "quiet", text: t("missing.examples") }));
  return [block("shape.title", ...parts)];
}

function featureTable(features, layer, head) {
  const even = (name) => page.measures.find((one) => one.group === "patterns" && one.name === `${name}_even`);
  const rows = features.map((measure) => {
    const one = readMeasure(measure, [], layer, head);
    const beside = even(measure.name);
    return [
      { text: named(`shape.feature.${measure.name}`, measure.name) },
      { ...numberCell(one.value, percent), note: isNumber(one.low) ? span(one.low, one.high, percent) : "" },
      beside ? numberCell(readMeasure(beside, [], layer, head).value, percent) : { text: MISSING, value: "" },
    ];
  });
  const columns = columnsOf(["shape.feature", "text"], ["word.share"], ["shape.even"]);
  return dataTable(`pattern-${headName(layer, head)}`, t("shape.caption"), columns, rows, "compact", "hidden");
}

// One pattern of this head, small, with the way to the viewer.
function samplePattern(layer, head) {
  const example = page.examples[state.example ?? 0];
  const sentence = example.words.join(" ");
  const canvas = el("canvas", {
    class: "thumb large",
    role: "img",
    "aria-label": t("card.pattern.alt", { head: headName(layer, head), sentence }),
  });
  loadPatterns().then(() => paintThumb(canvas, matrixOf(example, layer, head, { words: false, hide: false })));
  const open = button(t("card.pattern.open"), () => openPattern(layer, head));
  const about = el("div", {}, el("p", { class: "sentence" }, word(sentence)), open);
  return el("div", { class: "sample" }, canvas, about);
}

const NEIGHBOURS = 5;

// The heads whose attention is most like this one's.
function neighbourBlock(layer, head) {
  const map = page.clusters;
  if (!map) return [];
  const own = layer * page.heads + head;
  const others = eachHead((l, h) => ({ l, h, away: map.distance.at(own, l * page.heads + h) }))
    .filter(({ l, h, away }) => isNumber(away) && (l !== layer || h !== head))
    .sort((a, b) => a.away - b.away)
    .slice(0, NEIGHBOURS);
  if (!others.length) return [];
  const rows = others.map(({ l, h, away }) => [
    headCell(l, h),
    numberCell(away, (value) => fixed(value, 3)),
    { text: labelsOf(l, h).slice(0, 2).map(labelText).join("; ") || t("family.unlabelled") },
  ]);
  const columns = columnsOf(["word.head.one", "text"], ["clusters.distance"], ["word.labels", "text"]);
  const name = headName(layer, head);
  return [block("clusters.near", dataTable(`near-${name}`, t("clusters.near.caption"), columns, rows, "compact"))];
}
