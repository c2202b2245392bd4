// What can be shown per head: labels, any measure of the study, any relation. Each becomes a view the atlas can draw:
// {title, unit, kind, domain, cell(layer, head) -> {value, low, high, n, tag, mark, more}, baseline, note, code}.

const FAMILIES = ["position", "sink", "broad", "syntax", "semantics"];
// The family a cell names first, where a head has several: the most telling one.
const TELLING = ["semantics", "syntax", "position", "sink", "broad"];

const state = {
  layer: page.start.layer,
  head: page.start.head,
  shown: "",
  extra: [],
  relation: 0,
  direction: 0,
  scorer: 0,
  amount: "accuracy",
};

function eachHead(visit) {
  const found = [];
  for (let layer = 0; layer < page.layers.length; layer += 1) {
    for (let head = 0; head < page.heads; head += 1) found.push(visit(layer, head));
  }
  return found;
}

// Where the layer stands in the model, when there is more than one kind of attention.
function layerKind(layer) {
  const kinds = new Set(page.layers.map((one) => one.kind));
  const { kind, index } = page.layers[layer];
  return kinds.size > 1 ? `${named(`kind.${kind}`, kind)} ${index}` : "";
}

// A label in a few characters: "prev", "[CLS]", "obj ↑".
function tagOf(found) {
  if (found.relation) return `${found.direction === "head->dep" ? "↓" : "↑"} ${shortRelation(found.relation)}`;
  if (isNumber(found.offset) && Math.abs(found.offset) > 1) return signed(found.offset);
  return named(`tag.${found.label}`, String(found.label));
}

function labelText(found) {
  if (found.relation) return `${found.relation} (${arrow(found.direction || "")})`;
  return named(`label.${found.label}`, String(found.label));
}

function strength(found) {
  return found.difference ?? found.score ?? 0;
}

// A head's labels, the most telling first; one per text, so that `dep:obj` and `udep:obj` count once.
function labelsOf(layer, head, family = "*") {
  const wanted = findingsOf(layer, head).labels.filter((found) => family === "*" || found.family === family);
  wanted.sort((a, b) => TELLING.indexOf(a.family) - TELLING.indexOf(b.family) || strength(b) - strength(a));
  const seen = new Set();
  return wanted.filter((found) => {
    const key = `${found.family} ${tagOf(found)}`;
    return !seen.has(key) && seen.add(key);
  });
}

function mainTag(layer, head) {
  const [first] = labelsOf(layer, head);
  return first ? tagOf(first) : "";
}

function measureTitle(measure) {
  const name = named(`metric.${measure.name}`, measure.name);
  return measure.group === "metrics" ? name : `${groupName(measure.group)}: ${name}`;
}

// A closed menu shows no group: probes and controls have numbers whose names alone do not say what they are of.
function menuName(measure) {
  const alone = !["probes", "controls"].includes(measure.group.split("/")[0]);
  return alone ? named(`metric.${measure.name}`, measure.name) : measureTitle(measure);
}

// Everything the atlas can show, for its menu.
function viewOptions() {
  const options = [];
  if (page.labels) {
    const group = t("atlas.group.labels");
    options.push({ value: "labels:*", label: t("atlas.labels.all"), group });
    for (const family of FAMILIES) {
      if (eachHead((l, h) => labelsOf(l, h, family).length).some(Boolean)) {
        options.push({ value: `labels:${family}`, label: t(`family.${family}`), group });
      }
    }
    options.push({ value: "labels:none", label: t("atlas.labels.none"), group });
  }
  page.measures.forEach((measure, i) => {
    const group = groupName(measure.group);
    options.push({ value: `measure:${i}`, label: menuName(measure), group });
  });
  for (const [i, name] of (page.relations?.names || []).entries()) {
    const meaning = gloss(name);
    options.push({
      value: `relation:${i}`,
      label: meaning ? `${name} · ${meaning}` : name,
      group: t("atlas.group.relations"),
    });
  }
  return options;
}

function currentView() {
  const [kind, which] = splitOnce(state.shown);
  if (kind === "labels") return labelView(which);
  if (kind === "measure") return measureView(page.measures[Number(which)]);
  return relationView(Number(which));
}

function splitOnce(key) {
  const cut = key.indexOf(":");
  return [key.slice(0, cut), key.slice(cut + 1)];
}

function labelView(family) {
  const wanted = family === "none" ? "*" : family;
  return {
    code: `labels-${family}`,
    title: t(family === "*" ? "atlas.labels.all" : family === "none" ? "atlas.labels.none" : `family.${family}`),
    unit: "share",
    kind: "sequential",
    domain: [0, 1],
    note: t(family === "none" ? "atlas.note.unlabelled" : "atlas.note.labels"),
    cell(layer, head) {
      const labels = labelsOf(layer, head, wanted);
      const { miss } = findingsOf(layer, head);
      if (family === "none") {
        const shown = !labels.length && miss;
        return shown
          ? { ...numbersOf(miss), tag: tagOf(miss), more: [t("card.miss", { label: labelText(miss) })] }
          : { value: NaN, tag: labels.length ? "·" : "" };
      }
      if (!labels.length)
        return {
          value: NaN,
          tag: "·",
          more: miss && family === "*" ? [t("card.miss", { label: labelText(miss) })] : [],
        };
      const others = labels.slice(1, 6).map(labelText).join(t("list.comma"));
      const rest = labels.length > 6 ? `${others} ${t("list.more", { n: labels.length - 6 })}` : others;
      return {
        ...numbersOf(labels[0]),
        tag: tagOf(labels[0]),
        more: [labelText(labels[0]), others && t("card.also", { list: rest })],
      };
    },
  };
}

function numbersOf(found) {
  return { value: found.score ?? NaN, low: found.low, high: found.high, n: found.n };
}

function measureView(measure) {
  const place = measure.dims.map((dim, i) => Math.min(state.extra[i] ?? 0, dim.values.length - 1));
  const at = (part, layer, head) => (measure[part] ? measure[part].at(layer, head, ...place) : NaN);
  const values = eachHead((layer, head) => at("value", layer, head)).filter(isNumber);
  const where = measure.dims
    .map((dim, i) => `${named(`dim.${dim.name}`, dim.name)} ${coordinateLabel(dim, place[i])}`)
    .join(", ");
  const [from, to] = measure.limits;
  const low = Math.min(...values, Infinity);
  const high = Math.max(...values, -Infinity);
  // a difference has a middle, 0, even where all heads differ to one side or none does
  const diverging = Boolean(page.comparison) || (!isNumber(from) && low < 0 && high > 0);
  const reach = roundUp(Math.max(Math.abs(low), Math.abs(high), diverging ? doubt(at) : 0));
  const start = from === 0 || low >= 0 ? 0 : -roundUp(-low);
  const top = isNumber(to) ? Math.min(to, roundUp(high)) : roundUp(high);
  return {
    code: [measure.name, ...place].join("-"),
    title: where ? `${measureTitle(measure)} (${where})` : measureTitle(measure),
    unit: measure.unit,
    kind: diverging ? "diverging" : "sequential",
    domain: !values.length ? [0, 1] : diverging ? [-reach, reach] : [start, top],
    note: [
      named(`metric.${measure.name}.meaning`, measure.note),
      page.comparison ? t("compare.note") : named(`metric.${measure.name}.chance`, ""),
    ]
      .filter(Boolean)
      .join(t("list.sentence")),
    cell: (layer, head) => ({
      value: at("value", layer, head),
      low: at("low", layer, head),
      high: at("high", layer, head),
      n: at("count", layer, head),
      mark: Boolean(page.comparison) && (at("low", layer, head) > 0 || at("high", layer, head) < 0),
      tag: mainTag(layer, head),
      more: labelsOf(layer, head)
        .slice(0, 1)
        .map((found) => t("card.label.short", { label: labelText(found) })),
    }),
  };
}

// Half the width of a middling interval: a two-way scale reaches at least so far, so that rounding does not look like a difference.
function doubt(at) {
  const halves = eachHead((l, h) => (at("high", l, h) - at("low", l, h)) / 2).filter(isNumber).sort((a, b) => a - b);
  return halves.length ? halves[Math.floor(halves.length / 2)] : 0;
}

function coordinateLabel(dim, place) {
  const value = dim.values[place];
  if (dim.name === "offset") return signed(Number(value));
  return named(`value.${value}`, value);
}

function relationView(relation) {
  const r = page.relations;
  const gain = state.amount === "difference";
  const found = (layer, head) => relationAt(relation, state.direction, layer, head, state.scorer);
  const all = eachHead(found);
  const values = all.map((one) => (gain ? one.difference : one.accuracy)).filter(isNumber);
  const { baseline, offset, n } = all[0] || {};
  const reach = roundUp(Math.max(...values.map(Math.abs), 0.05));
  return {
    code: `${r.names[relation].replaceAll(":", "-")}-${r.directions[state.direction].replace("->", "-")}-${state.amount}`,
    title: `${r.names[relation]} (${arrow(r.directions[state.direction])})${gain ? ` · ${t("atlas.gain")}` : ""}`,
    unit: gain ? "points" : "share",
    kind: gain ? "diverging" : "sequential",
    domain: gain ? [-reach, reach] : [0, Math.min(1, roundUp(Math.max(...values, baseline || 0, 0.05)))],
    baseline: gain
      ? null
      : { value: baseline, label: t("legend.baseline", { value: percent(baseline), offset: signed(offset) }) },
    note: `${t(`direction.${r.directions[state.direction]}`)} ${t("atlas.note.relation", { cases: count(n) })}`,
    cell(layer, head) {
      const one = found(layer, head);
      return {
        value: gain ? one.difference : one.accuracy,
        low: gain ? one.differenceLow : one.low,
        high: gain ? one.differenceHigh : one.high,
        n: one.n,
        tag: gain ? percent(one.accuracy, 0) : points(one.difference),
        mark: passes(one),
        more: relationLines(one),
      };
    },
  };
}

function relationLines(one) {
  return [
    t("tip.gain", {
      gain: points(one.difference),
      interval: span(one.differenceLow, one.differenceHigh, points),
      offset: signed(one.offset),
    }),
    isNumber(one.p) ? t("tip.p", { p: pValue(one.p) }) : t("tip.untested"),
    isNumber(one.all.accuracy)
      ? t("tip.all", { accuracy: percent(one.all.accuracy, 2), cases: count(one.all.n) })
      : null,
  ];
}

// How a view's values read: in a cell, and in full.
function inCell(value, view) {
  return brief(value, view.unit, Math.max(...view.domain.map(Math.abs)));
}

function inFull(value, unit) {
  if (!isNumber(value)) return t("word.undefined");
  return unit === "points" ? t("unit.points.of", { value: points(value) }) : quantity(value, unit);
}

function shareOf(value, [low, high]) {
  return (value - low) / (high - low || 1);
}
