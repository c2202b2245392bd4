// The page's patterns: unpacked, merged to words, filtered; and a count of every bit of weight that is out of sight.

const FIRST = "first"; // stands for the first token in the set of what is hidden
const HIDDEN = -1;
const ELSEWHERE = -2;
const NOTHING = 1e-6;

async function loadStacks() {
  const read = await unpack("view-patterns");
  for (const stack of page.stacks) {
    stack.rows = page.axes[stack.query];
    stack.columns = page.axes[stack.key];
    for (const module of stack.modules) {
      for (const part of ["codes", "scale", "total"]) module[part] = read(module[part]);
      if (module.neurons) module.neurons = readNeurons(module.neurons, read);
    }
  }
}

function readNeurons(neurons, read) {
  const vectors = (packed) => {
    const [codes, low, step] = [packed.codes, packed.low, packed.step].map(read);
    return { at: (head, place, i) => low.at(head) + step.at(head) * codes.at(head, place, i) };
  };
  return { ...neurons, q: vectors(neurons.q), k: vectors(neurons.k), added: read(neurons.added) };
}

// What rows and columns stand for: tokens, or words (special tokens stay by themselves).
function unitsOf(axis, words) {
  const units = [];
  const ofWord = new Map();
  axis.tokens.forEach((token, place) => {
    const belongs = words ? axis.word[place] : -1;
    if (ofWord.has(belongs)) {
      ofWord.get(belongs).places.push(place);
      return;
    }
    const label = belongs >= 0 ? axis.words[belongs] || token : token;
    const unit = { label, token, places: [place], special: Boolean(axis.special[place]), segment: axis.segments[place], first: axis.start + place === 0 };
    if (belongs >= 0) ofWord.set(belongs, unit);
    units.push(unit);
  });
  return units;
}

function isHidden(unit, hidden) {
  return (unit.special && hidden.has(unit.token)) || (unit.first && hidden.has(FIRST));
}

// The rows and columns in sight, and for each key position its column, or why it has none.
function sceneOf(stack, { words, hidden, pair, step }) {
  const [from, to] = pair ? pair.split(">").map(Number) : [null, null];
  const inStep = (unit) => step === "" || stack.steps[unit.places[0]] === Number(step);
  const rows = unitsOf(stack.rows, words).filter((unit) => !isHidden(unit, hidden) && (from === null || unit.segment === from) && inStep(unit));
  const columns = [];
  const columnOf = new Int32Array(stack.columns.tokens.length);
  for (const unit of unitsOf(stack.columns, words)) {
    const elsewhere = to !== null && unit.segment !== to;
    const column = isHidden(unit, hidden) ? HIDDEN : elsewhere ? ELSEWHERE : columns.push(unit) - 1;
    for (const place of unit.places) columnOf[place] = column;
  }
  return { stack, rows, columns, columnOf };
}

// Whether a query cannot see a key because it comes later.
function isLater(row, column) {
  const { stack, rows, columns } = scene;
  return stack.causal && columns[column].places[0] > rows[row].places[rows[row].places.length - 1];
}

// One head's weights between the units in sight: summed over the tokens of a key, averaged over the tokens of a query. `mass` says, as
// mean shares over the rows, where the weight goes: shown, hidden, elsewhere (other text), window (tokens not on this page), sink.
function matrixOf(scene, module, place, renormalise = false) {
  const [R, C] = [scene.rows.length, scene.columns.length];
  const weights = new Float32Array(R * C);
  const mass = { shown: 0, hidden: 0, elsewhere: 0, window: 0, sink: 0 };
  const lost = { undefined: 0, empty: 0 };
  scene.rows.forEach((unit, row) => {
    const line = weights.subarray(row * C, (row + 1) * C);
    const part = rowInto(line, scene, module, place, unit.places);
    if (part === null) {
      line.fill(NaN);
      lost.undefined += 1;
      return;
    }
    for (const name of Object.keys(mass)) mass[name] += part[name];
    if (!renormalise) return;
    if (part.shown > NOTHING) line.forEach((weight, column) => (line[column] = weight / part.shown));
    else {
      line.fill(NaN);
      lost.empty += 1;
    }
  });
  const rows = R - lost.undefined;
  for (const name of Object.keys(mass)) mass[name] = rows ? mass[name] / rows : NaN;
  return { scene, module, R, C, weights, mass, lost, name: headName(module.layer, module.heads[place]), at: (row, column) => weights[row * C + column] };
}

// Adds the row of a query (mean over its tokens) to `line`; null where a token sees nothing at all.
function rowInto(line, scene, module, place, tokens) {
  const { values, steps } = module.codes;
  const part = { shown: 0, hidden: 0, elsewhere: 0, window: 0, sink: 0 };
  for (const token of tokens) {
    const total = module.total.at(place, token);
    if (!isNumber(total)) return null;
    const scale = module.scale.at(place, token) / tokens.length;
    const start = place * steps[0] + token * steps[1];
    let inside = 0;
    for (let key = 0; key < scene.columnOf.length; key += 1) {
      const code = values[start + key * steps[2]];
      if (code === 0) continue;
      const weight = scale * code * code;
      const column = scene.columnOf[key];
      inside += weight;
      if (column >= 0) {
        line[column] += weight;
        part.shown += weight;
      } else part[column === HIDDEN ? "hidden" : "elsewhere"] += weight;
    }
    part.window += Math.max(0, total / tokens.length - inside);
    part.sink += Math.max(0, 1 - total) / tokens.length;
  }
  return part;
}

// How many of the weights reach the threshold, and the share of the weight in sight that they hold.
function keptBy(one, least) {
  let [cells, of, kept, all] = [0, 0, 0, 0];
  one.weights.forEach((weight, i) => {
    if (!isNumber(weight) || isLater(Math.floor(i / one.C), i % one.C)) return;
    of += 1;
    all += weight;
    if (weight < least) return;
    cells += 1;
    kept += weight;
  });
  return { cells, of, share: all > 0 ? kept / all : 1 };
}

// The `most` largest of the weights that reach the threshold, largest first, as [place, weight]; and how many reach it. Counting them by
// shade first leaves few to sort, however long the text is.
function strongest(length, at, least, most) {
  const ofShade = new Int32Array(DEEPEST + 1);
  const reaches = (weight) => weight > 0 && weight >= least;
  let n = 0;
  for (let i = 0; i < length; i += 1) {
    if (!reaches(at(i))) continue;
    n += 1;
    ofShade[shadeOf(at(i))] += 1;
  }
  let lowest = DEEPEST;
  for (let enough = ofShade[DEEPEST]; lowest > 0 && enough < most; enough += ofShade[lowest]) lowest -= 1;
  const found = [];
  for (let i = 0; i < length; i += 1) if (reaches(at(i)) && shadeOf(at(i)) >= lowest) found.push([i, at(i)]);
  return { n, found: found.sort((a, b) => b[1] - a[1]).slice(0, most) };
}

function weightText(weight) {
  if (!isNumber(weight)) return t("word.undefined");
  const digits = page.error.bits > 8 ? 4 : 3;
  const least = 10 ** -digits;
  return weight > 0 && weight < least / 2 ? `<${least}` : weight.toFixed(digits);
}
