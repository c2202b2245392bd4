// The blocks of the head card below its labels: metric profile, position, best relations, one pattern, whatever else the study holds.

// Each single-number metric, and where this head lies among all.
function profileBlock(layer, head) {
  const measures = page.measures.filter(
    (measure) => measure.group === "metrics" && measure.dims.every((dim) => dim.name === "sinks"),
  );
  if (!measures.length) return [block("card.profile", el("p", { class: "quiet", text: t("missing.metrics") }))];
  const rows = measures.flatMap((measure) => {
    const views = measure.dims.length
      ? measure.dims[0].values.map((name, i) => [[i], named(`value.${name}`, name)])
      : [[[], ""]];
    return views.map(([place, view]) => profileRow(measure, place, view, layer, head));
  });
  return [block("card.profile", el("div", { class: "profile" }, rows))];
}

function profileRow(measure, place, view, layer, head) {
  const value = measure.value.at(layer, head, ...place);
  const all = eachHead((l, h) => measure.value.at(l, h, ...place));
  const known = all.filter(isNumber);
  const rank = known.filter((other) => other > value).length + 1;
  const [from, to] = measure.limits;
  const domain = [isNumber(from) ? from : Math.min(...known), isNumber(to) ? to : Math.max(...known)];
  const name = measureTitle(measure) + (view ? ` (${view})` : "");
  const alt = t("card.rank", { name, rank, of: known.length });
  const low = measure.low?.at(layer, head, ...place);
  const high = measure.high?.at(layer, head, ...place);
  const show = measure.unit === "share" ? percent : plain;
  const holder = el("div", { class: "profile-strip" });
  drawToWidth(holder, (width) => holder.replaceChildren(strip(width, all, value, domain, alt)));
  return el(
    "div",
    { class: "profile-row", title: named(`metric.${measure.name}.meaning`, measure.note) },
    el("span", { class: "profile-name", text: name }),
    el("span", { class: "profile-value", text: quantity(value, measure.unit) }),
    el("span", { class: "profile-interval", text: isNumber(low) ? span(low, high, show) : "" }),
    holder,
    el("span", {
      class: "profile-rank",
      text: isNumber(value) ? t("card.rank.short", { rank, of: known.length }) : "",
    }),
  );
}

// Attention by distance and to the special targets.
function positionBlock(layer, head) {
  const mass = measureNamed("offset_mass");
  const special = measureNamed("special_mass");
  const parts = [
    mass && offsetFigure(mass, special, layer, head),
    special && targetFigure(special, layer, head),
  ].filter(Boolean);
  if (!parts.length) return [];
  return [el("div", { class: "duo" }, parts)];
}

function readingAt(measure, layer, head, dim, i) {
  const place = measure.dims.map((one) => (one.name === dim ? i : 0));
  const read = (part) => (measure[part] ? measure[part].at(layer, head, ...place) : NaN);
  return { value: read("value"), low: read("low"), high: read("high"), n: read("count") };
}

function offsetFigure(mass, special, layer, head) {
  const dim = mass.dims.find((one) => one.name === "offset");
  if (!dim) return null;
  const items = dim.values.map((value, i) => ({
    place: Number(value),
    label: signed(Number(value)),
    ...readingAt(mass, layer, head, "offset", i),
  }));
  const targets = special?.dims.find((one) => one.name === "target");
  const self = targets ? targets.values.indexOf("self") : -1;
  if (self >= 0) items.push({ place: 0, label: "0", ...readingAt(special, layer, head, "target", self) });
  items.sort((a, b) => a.place - b.place);
  return barFigure(
    `offsets-${headName(layer, head)}`,
    "card.offsets",
    items,
    t("card.offsets.alt", { head: headName(layer, head), list: highest(items, "card.offset.item") }),
    (width, label) =>
      barChart(width, 150, items, {
        unit: "share",
        top: Math.min(1, roundUp(Math.max(...items.map((item) => item.value || 0), 0.05))),
        label,
        every: Math.max(1, Math.round((items.length - 1) / (width < 260 ? 2 : 4))),
      }),
  );
}

function targetFigure(special, layer, head) {
  const dim = special.dims.find((one) => one.name === "target");
  if (!dim) return null;
  const items = dim.values.map((value, i) => ({
    label: named(`value.${value}`, value),
    ...readingAt(special, layer, head, "target", i),
  }));
  return barFigure(
    `targets-${headName(layer, head)}`,
    "card.targets",
    items,
    t("card.targets.alt", { head: headName(layer, head), list: highest(items, "card.target.item") }),
    (width, label) => lyingBars(width, items, { unit: "share", top: 1, label }),
  );
}

function highest(items, key) {
  return [...items]
    .filter((item) => isNumber(item.value))
    .sort((a, b) => b.value - a.value)
    .slice(0, 3)
    .map((item) => t(key, { label: item.label, value: percent(item.value) }))
    .join(t("list.comma"));
}

function barFigure(name, key, items, alt, draw) {
  for (const item of items)
    item.tip = () => [
      el("strong", { text: `${item.full || item.label}: ${quantity(item.value, "share")}` }),
      isNumber(item.low) ? t("tip.interval", { interval: span(item.low, item.high, percent) }) : null,
      isNumber(item.n) ? t("tip.n", { cases: count(item.n) }) : null,
    ];
  const body = el("div", { class: "chart" });
  let drawing = null;
  drawToWidth(body, (width) => body.replaceChildren((drawing = draw(width, alt))));
  const table = () => ({
    columns: columnsOf(["word.where", "text"], ["word.share"], ["word.low"], ["word.high"], ["word.n"]),
    rows: items.map((item) => [
      { text: item.full || item.label },
      numberCell(item.value, percent),
      numberCell(item.low, percent),
      numberCell(item.high, percent),
      numberCell(item.n, count),
    ]),
  });
  const made = figure({ name, caption: t(`${key}.caption`), body, drawing: () => drawing, table });
  return el("section", { class: "block" }, el("h4", { text: t(key) }), made.node);
}

// The relations that this head follows furthest beyond the baseline: chosen on select, shown on report.
function relationBlock(layer, head) {
  const r = page.relations;
  if (!r) return [block("card.relations", el("p", { class: "quiet", text: t("missing.relations") }))];
  const found = [];
  const seen = new Set();
  r.names.forEach((name, relation) => {
    r.directions.forEach((direction, d) => {
      r.scorers.forEach((scorer, s) => {
        const one = relationAt(relation, d, layer, head, s);
        const chosenBy = isNumber(one.select.accuracy) ? one.select.accuracy - one.select.baseline : one.difference;
        const key = [shortRelation(name), d, s, one.n, one.accuracy].join(" "); // `dep:obj` and `udep:obj` may be the same cases
        if (one.n >= r.minimum_n && isNumber(chosenBy) && !seen.has(key) && seen.add(key))
          found.push({ name, direction, relation, d, s, scorer, one, chosenBy });
      });
    });
  });
  found.sort((a, b) => b.chosenBy - a.chosenBy);
  if (!found.length)
    return [
      block("card.relations", el("p", { class: "quiet", text: t("card.relations.none", { minimum: r.minimum_n }) })),
    ];
  const columns = columnsOf(
    ["best.relation", "text"],
    ["best.accuracy"],
    ["word.n"],
    ["best.baseline"],
    ["best.gain"],
    ["best.p"],
  );
  const rows = found.slice(0, 5).map(({ name, direction, relation, d, s, scorer, one }) => {
    const link = button(`${name} ${arrow(direction)}`, () => openRelation(relation, d, s), {
      class: "link",
      title: t("card.open_relation"),
    });
    const node = el(
      "div",
      {},
      link,
      el("span", {
        class: "note",
        text: [gloss(name), r.scorers.length > 1 ? named(`scorer.${scorer}`, scorer) : ""].filter(Boolean).join(" · "),
      }),
    );
    return [
      { node, value: `${name} (${arrow(direction)})` },
      { ...numberCell(one.accuracy, percent), note: span(one.low, one.high, percent) },
      numberCell(one.n, count),
      { ...numberCell(one.baseline, percent), note: baselineName({ baseline_offset: one.offset }) },
      { ...numberCell(one.difference, points), note: span(one.differenceLow, one.differenceHigh, points) },
      numberCell(one.p, pValue),
    ];
  });
  const table = dataTable(
    `relations-${headName(layer, head)}`,
    t("card.relations.caption", { minimum: r.minimum_n, margin: percent(r.margin, 0) }),
    columns,
    rows,
    "compact",
  );
  return [block("card.relations", table)];
}

// What the study lacks, folded away: the same for every head.
function missingBlock() {
  if (!page.missing.length) return [];
  const list = page.missing.map((item) => el("div", {}, el("dt", { text: item.title }), el("dd", { text: item.text })));
  const fold = el("details", {}, el("summary", { text: t("card.absent", { n: page.missing.length }) }));
  fold.append(el("dl", { class: "absent" }, list));
  return [el("section", { class: "block" }, fold)];
}
