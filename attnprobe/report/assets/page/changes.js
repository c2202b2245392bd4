// The card of a comparison: what a head of the second study does that its counterpart in the first did not, and the other way round.

function changesOf(layer, head) {
  return page.comparison.labels?.[layer]?.[head] || { gained: [], lost: [], kept: [], untested: [] };
}

function changeVerdict(layer, head) {
  const found = changesOf(layer, head);
  const parts = ["gained", "lost", "kept", "untested"]
    .filter((kind) => found[kind].length)
    .map((kind) => t(`change.${kind}.list`, { list: changedLabels(found[kind]).join(t("list.comma")) }));
  return parts.length ? parts.join(t("list.sentence")) : t("change.none");
}

function changedLabels(labels) {
  const names = [...new Set(labels.map((found) => shortChange(found.label)))];
  return names.length > 4 ? [...names.slice(0, 4), t("list.more", { n: names.length - 4 })] : names;
}

// `udep:obj (dep->head)` and `dep:obj (dep->head)` read alike here.
function shortChange(label) {
  return named(`label.${label}`, arrow(String(label).replace(/^u?dep:/, "")));
}

function changeBlock(layer, head) {
  const found = changesOf(layer, head);
  const once = (labels) => [...new Map(labels.map((label) => [`${shortChange(label.label)} ${label.score}`, label])).values()];
  const rows = ["gained", "lost", "kept", "untested"].flatMap((kind) =>
    once(found[kind]).map((label) => [
      { text: t(`change.${kind}`) },
      { text: named(`label.${label.label}`, arrow(String(label.label))) },
      { ...numberCell(label.score, percent), note: span(label.low, label.high, percent) },
    ]),
  );
  if (!rows.length) return [];
  const columns = columnsOf(["change.what", "text"], ["card.column.label", "text"], ["card.column.score"]);
  const name = headName(layer, head);
  return [block("change.labels", dataTable(`changes-${name}`, t("change.caption"), columns, rows, "compact"))];
}

// The head of the second study that does most nearly what this one does.
function matchBlock(layer, head) {
  const match = page.comparison.matches;
  if (!match) return [];
  const [l, h] = [match.layer.at(layer, head), match.head.at(layer, head)];
  if (!isNumber(l)) return [block("match.title", el("p", { class: "quiet", text: t("match.none") }))];
  const same = l === layer && h === head;
  const values = { head: headName(l, h), distance: fixed(match.distance.at(layer, head), 3), unit: match.unit };
  const text = t(same ? "match.same" : "match.other", { ...values, same: fixed(match.same.at(layer, head), 3) });
  return [block("match.title", el("p", {}, text), el("p", { class: "small", text: match.method }))];
}

// Every metric's change at this head, with its interval.
function differenceBlock(layer, head) {
  const found = page.measures.filter((measure) => measure.group === "metrics" && !measure.dims.length);
  if (!found.length) return [];
  const rows = found.map((measure) => {
    const one = readMeasure(measure, [], layer, head);
    const show = measure.unit === "points" ? points : small;
    const apart = one.low > 0 || one.high < 0;
    return [
      { node: el("span", { title: named(`metric.${measure.name}.meaning`, "") }, metricName(measure.name)), value: measure.name },
      { ...numberCell(one.value, show), note: span(one.low, one.high, show) },
      { text: isNumber(one.low) ? t(apart ? "word.yes" : "word.no") : MISSING },
    ];
  });
  const columns = columnsOf(["metric.column.name", "text"], ["change.difference"], ["change.apart", "text"]);
  const name = headName(layer, head);
  return [block("change.metrics", dataTable(`differences-${name}`, t("change.metrics.caption"), columns, rows, "compact"))];
}

const CHANGES_SHOWN = 6;

// `dep:obj` and `udep:obj` may be the same cases.
function sameCases(one, other, axis) {
  const rest = one.place.every((place, i) => i === axis || place === other.place[i]);
  return rest && shortRelation(one.name) === shortRelation(other.name) && one.value === other.value;
}

// The relations on which this head changed most, among those whose interval leaves out zero.
function relationChangeBlock(layer, head) {
  const measure = page.measures.find((one) => one.group === "relations" && one.name === "difference");
  if (!measure) return [];
  const cases = page.comparison.cases || {};
  const relation = measure.dims.findIndex((dim) => dim.name === "relation");
  const found = product(measure.dims.map((dim) => dim.values.length))
    .map((place) => ({ place, name: measure.dims[relation].values[place[relation]], ...readMeasure(measure, place, layer, head) }))
    .filter((one) => (one.low > 0 || one.high < 0) && !(cases[one.name] < page.comparison.minimum_n))
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .filter((one, i, all) => all.findIndex((other) => sameCases(one, other, relation)) === i)
    .slice(0, CHANGES_SHOWN);
  if (!found.length) return [block("change.relations", el("p", { class: "quiet", text: t("change.relations.none") }))];
  const rows = found.map((one) => [
    { text: measure.dims.map((dim, axis) => (dim.values.length > 1 ? coordinateLabel(dim, one.place[axis]) : "")).filter(Boolean).join(" · ") },
    { ...numberCell(one.value, points), note: span(one.low, one.high, points) },
  ]);
  const columns = columnsOf(["best.relation", "text"], ["change.difference"]);
  const name = headName(layer, head);
  return [block("change.relations", dataTable(`relation-changes-${name}`, t("change.relations.caption"), columns, rows, "compact"))];
}
