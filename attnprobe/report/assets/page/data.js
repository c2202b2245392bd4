// Reading the packed numbers: one deflated block of typed arrays per script element.

const TYPES = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

// An array of the study; axes along which it does not change are stored once.
class Table {
  constructor(values, shape, stored) {
    this.values = values;
    this.shape = shape;
    this.steps = stored.map((length, axis) => (length === 1 ? 0 : stored.slice(axis + 1).reduce((a, b) => a * b, 1)));
  }

  at(...place) {
    let offset = 0;
    for (let axis = 0; axis < place.length; axis += 1) offset += place[axis] * this.steps[axis];
    return this.values[offset];
  }
}

async function unpack(id) {
  const packed = JSON.parse(byId(id).textContent);
  const text = atob(packed.deflated);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const block = await new Response(stream).arrayBuffer();
  return (reference) => {
    const length = reference.stored.reduce((a, b) => a * b, 1);
    const values = new TYPES[reference.type](block, reference.at, length);
    return new Table(values, reference.shape, reference.stored);
  };
}

// Replaces every reference in the page's data by its table.
async function loadTables() {
  const read = await unpack("page-tables");
  for (const measure of page.measures) {
    for (const part of ["value", "low", "high", "count", "sd"]) if (measure[part]) measure[part] = read(measure[part]);
  }
  for (const one of page.context) one.value = read(one.value);
  for (const name of ["labels", "profiles"])
    if (page[name]) page[name] = JSON.parse(new TextDecoder().decode(read(page[name]).values));
  for (const part of [page.clusters, page.comparison?.matches])
    for (const [name, value] of Object.entries(part || {})) if (value?.stored) part[name] = read(value);
  for (const [name, value] of Object.entries(page.relations || {})) {
    if (value && value.stored) page.relations[name] = read(value);
  }
}

// The patterns are read when the first of them is drawn.
let patterns = null;

function loadPatterns() {
  patterns ??= unpack("page-patterns").then((read) => {
    for (const example of page.examples) example.pattern = read(example.pattern);
  });
  return patterns;
}

function findingsOf(layer, head) {
  return page.labels ? page.labels[layer][head] : { labels: [], miss: null };
}

function measureNamed(name, group = "metrics") {
  return page.measures.find((measure) => measure.group === group && measure.name === name) || null;
}

// One relation's numbers at one head, on `report` unless another split is named.
function relationAt(relation, direction, layer, head, scorer = 0) {
  const r = page.relations;
  const report = Math.max(0, r.splits.indexOf("report"));
  const read = (name) => (r[name] ? r[name].at(scorer, relation, direction, layer, head) : NaN);
  const inSplit = (split) => {
    const place = r.splits.indexOf(split);
    return {
      accuracy: place < 0 ? NaN : r.accuracy.at(place, scorer, relation, direction, layer, head),
      n: place < 0 || !r.n ? NaN : r.n.at(place, relation),
      baseline: place < 0 || !r.baseline ? NaN : r.baseline.at(place, relation),
    };
  };
  return {
    accuracy: r.accuracy.at(report, scorer, relation, direction, layer, head),
    low: read("low"),
    high: read("high"),
    n: r.n ? r.n.at(report, relation) : NaN,
    baseline: r.baseline ? r.baseline.at(report, relation) : NaN,
    offset: r.baseline_offset ? r.baseline_offset.at(report, relation) : NaN,
    difference: read("difference"),
    differenceLow: read("difference_low"),
    differenceHigh: read("difference_high"),
    p: read("p_adjusted"),
    ties: read("ties"),
    noMass: read("no_mass"),
    all: inSplit("all"),
    select: inSplit("select"),
  };
}

// Whether the numbers pass the rule of a syntactic or semantic label.
function passes(found) {
  return found.p < 0.05 && found.difference >= page.relations.margin && found.n >= page.relations.minimum_n;
}
