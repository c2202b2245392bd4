// How one query's weights come about: q, k, q times k dimension by dimension, their sum, the scale, what is added, the softmax.

const NEURONS = { row: 26, least: 2, most: 8, wide: 132 };
const neurons = {};

function buildNeurons() {
  neurons.choice = el("div", { class: "neurons-choice" });
  neurons.table = el("div", { class: "neurons scroll", id: "neurons", role: "region", tabindex: "0", "aria-label": t("view.neurons") });
  neurons.note = el("div", { class: "small" });
  neurons.node = el("div", { class: "neurons-holder" }, neurons.choice, neurons.table, neurons.note);
  return neurons.node;
}

// The neuron view knows tokens only: what is hidden, merged or rescaled elsewhere is whole here.
function neuronQuery() {
  const unit = state.query === null ? null : scene.rows[state.query];
  return unit ? unit.places[0] : neurons.at ?? (scene.rows[0]?.places[0] || 0);
}

function drawNeurons() {
  const module = chosenModule();
  if (!module.neurons) {
    neurons.choice.replaceChildren();
    neurons.table.replaceChildren(el("p", { class: "quiet", text: t(`neurons.${page.neurons}`) }));
    neurons.note.replaceChildren();
    return;
  }
  const stack = chosenStack();
  const query = neuronQuery();
  const tokens = stack.rows.tokens.map((token, i) => ({ value: String(i), label: `${stack.rows.start + i}: ${visible(token)}` }));
  const box = selectBox(t("neurons.query"), tokens, String(query), (value) => {
    neurons.at = Number(value);
    const row = scene.rows.findIndex((unit) => unit.places[0] === neurons.at);
    focusOn(row < 0 ? null : row, null);
    if (row < 0) drawNeurons();
    byId("neuron-query").focus();
  }, { id: "neuron-query" });
  neurons.choice.replaceChildren(box);
  const found = productsOf(module, state.place, query);
  neurons.table.replaceChildren(neuronTable(stack, module, found));
  paintVectors(found);
  const scale = fixed(module.neurons.scale, 4);
  const root = Math.abs(module.neurons.scale * Math.sqrt(module.neurons.dim) - 1) < 1e-3 ? t("neurons.root", { dim: module.neurons.dim }) : "";
  neurons.note.replaceChildren(el("p", { text: t("neurons.note", { scale: scale + root, head: matrix.name }) }));
}

// Every number of the chain, from the stored q and k.
function productsOf(module, place, query) {
  const { q, k, added, scale, dim } = module.neurons;
  const vector = (of, at) => Float32Array.from({ length: dim }, (_, i) => of.at(place, at, i));
  const mine = vector(q, query);
  const keys = chosenStack().columns.tokens.map((_, key) => {
    const theirs = vector(k, key);
    const products = theirs.map((value, i) => value * mine[i]);
    const dot = products.reduce((sum, value) => sum + value, 0);
    const extra = added.at(place, query, key);
    return { key: theirs, products, dot, scaled: dot * scale, added: extra, score: dot * scale + extra, weight: weightAt(module, place, query, key) };
  });
  return { query: mine, keys, dim, token: query };
}

function weightAt(module, place, query, key) {
  if (!isNumber(module.total.at(place, query))) return NaN;
  return module.scale.at(place, query) * module.codes.at(place, query, key) ** 2;
}

function neuronTable(stack, module, found) {
  const rows = found.keys.length;
  const step = Math.max(NEURONS.least, Math.min(NEURONS.most, Math.floor(NEURONS.wide / found.dim)));
  Object.assign(found, { step, wide: step * found.dim });
  found.top = el("canvas", { role: "img", "aria-label": t("neurons.q.alt", { dim: found.dim }) });
  found.left = el("canvas", { role: "img", "aria-label": t("neurons.k.alt", { dim: found.dim }) });
  found.right = el("canvas", { role: "img", "aria-label": t("neurons.product.alt", { dim: found.dim }) });
  const names = ["dot", "scaled", "added", "score"];
  const head = el(
    "tr",
    {},
    el("th", { scope: "col", text: t("word.key") }),
    el("th", { scope: "col" }, el("span", { text: t("neurons.k") })),
    el("th", { scope: "col" }, el("span", { text: t("neurons.product") })),
    names.map((name) => el("th", { scope: "col", class: "number", title: t(`neurons.${name}.note`), text: t(`neurons.${name}`) })),
    el("th", { scope: "col", class: "number wide", title: t("neurons.weight.note"), text: t("neurons.weight") }),
  );
  const queryRow = el("tr", { class: "query-row" }, el("th", { scope: "row" }, el("span", { class: "quiet", text: "q " }), label({ label: stack.rows.tokens[found.token], special: false })), el("td", {}, found.top), el("td", { colspan: String(names.length + 2) }));
  const body = found.keys.map((one, i) => neuronRow(stack, one, i, i === 0 ? { left: found.left, right: found.right, rows } : null));
  const caption = el("caption", { class: "hidden", text: t("neurons.caption", { head: matrix.name, token: visible(stack.rows.tokens[found.token]) }) });
  return el("table", { class: "neurons-table" }, caption, el("thead", {}, head, queryRow), el("tbody", {}, body));
}

function neuronRow(stack, one, i, strips) {
  const hidden = one.added === -Infinity;
  const cell = (value) => el("td", { class: "number", text: hidden ? MISSING : fixed(value, 3) });
  const weight = el("td", { class: "number wide", data: { weight: isNumber(one.weight) ? one.weight : "" } }, el("span", { text: weightText(one.weight) }));
  setStyle(weight, { "--weight": `${isNumber(one.weight) ? (one.weight * 100).toFixed(1) : 0}%` });
  return el(
    "tr",
    { class: hidden ? "masked" : null },
    el("th", { scope: "row", title: stack.columns.tokens[i] }, label({ label: stack.columns.tokens[i], special: Boolean(stack.columns.special[i]) })),
    strips && el("td", { rowspan: String(strips.rows), class: "strip" }, strips.left),
    strips && el("td", { rowspan: String(strips.rows), class: "strip" }, strips.right),
    el("td", { class: "number", text: fixed(one.dot, 2) }),
    el("td", { class: "number", text: fixed(one.scaled, 3) }),
    hidden ? el("td", { class: "number", text: t("neurons.masked") }) : cell(one.added),
    cell(one.score),
    weight,
  );
}

function paintVectors(found) {
  const largest = (vectors) => Math.max(1e-9, ...vectors.map((vector) => vector.reduce((most, value) => Math.max(most, Math.abs(value)), 0)));
  const seen = found.keys.filter((one) => one.added !== -Infinity);
  const ranges = { q: largest([found.query]), k: largest(found.keys.map((one) => one.key)), product: largest((seen.length ? seen : found.keys).map((one) => one.products)) };
  strip(found.top, [found.query], ranges.q, found, (_, i) => [el("div", { text: t("neurons.dim", { i }) }), el("div", { text: `q = ${fixed(found.query[i], 3)}` })]);
  strip(found.left, found.keys.map((one) => one.key), ranges.k, found, dimLines(found));
  strip(found.right, found.keys.map((one) => one.products), ranges.product, found, dimLines(found));
}

function dimLines(found) {
  return (row, i) => {
    const one = found.keys[row];
    return [el("div", { text: t("neurons.dim", { i }) }), el("div", { text: `q = ${fixed(found.query[i], 3)}, k = ${fixed(one.key[i], 3)}` }), el("strong", { text: `q × k = ${fixed(one.products[i], 3)}` })];
  };
}

// One row of small boxes per vector: hue for the sign, depth for the size.
function strip(canvas, vectors, range, { step, wide }, linesAt) {
  const ratio = Math.min(2, window.devicePixelRatio || 1, 30000 / (vectors.length * NEURONS.row));
  const high = vectors.length * NEURONS.row;
  furnish(canvas, { width: Math.round(wide * ratio), height: Math.round(high * ratio) }, []);
  setStyle(canvas, { width: `${wide}px`, height: `${high}px` });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  vectors.forEach((vector, row) => {
    vector.forEach((value, i) => {
      pen.fillStyle = hex(colourAt(0.5 + value / range / 2, "diverging"));
      pen.fillRect(i * step, row * NEURONS.row + 3, step, NEURONS.row - 6);
    });
  });
  canvas.dataset.drawn = String(vectors.length);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [row, i] = [Math.floor((event.clientY - box.top) / NEURONS.row), Math.floor((event.clientX - box.left) / step)];
    if (row >= 0 && row < vectors.length && i >= 0 && i < vectors[0].length) tip.show(event.clientX, event.clientY, ...linesAt(row, i));
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
}
