// What is shown, and how parts of the page learn that it changed: `stack` (another kind of attention), `scene` (other
// rows, columns or weights), `head`, `focus`, `over` (the pointer).

const VIEWS = ["matrix", "lines", "neurons"];
const state = {
  stack: 0,
  module: 0,
  place: 0,
  view: "matrix",
  words: false,
  hidden: new Set(),
  renormalise: false,
  least: 0,
  pair: "",
  step: "",
  query: null,
  key: null,
  size: 0, // pixels of a matrix cell; 0: what fits
};
let scene = null;
let matrix = null;

function chosenStack() {
  return page.stacks[state.stack];
}

function chosenModule() {
  return chosenStack().modules[state.module];
}

function matrixAt(module, place) {
  return matrixOf(scene, module, place, state.renormalise);
}

// Rows, columns or weights change; the focus is let go where it no longer means the same.
function changeScene(changes) {
  const keeps = Object.keys(changes).every((name) => name === "least" || name === "renormalise");
  Object.assign(state, changes, keeps ? {} : { query: null, key: null });
  if (!keeps || scene === null) scene = sceneOf(chosenStack(), state);
  matrix = matrixAt(chosenModule(), state.place);
  emit("scene");
}

function changeStack(stack, module, place) {
  changeScene({ stack, module, place, step: "", pair: "" });
  emit("stack");
}

function chooseHead(module, place, from = "") {
  Object.assign(state, { module, place });
  matrix = matrixAt(chosenModule(), place);
  keepAddress(`#${matrix.name}`);
  emit("head", from);
  say(t("head.chosen", { head: matrix.name }));
}

function focusOn(query, key) {
  Object.assign(state, { query, key });
  emit("focus");
}

// The head that an address such as #L2H8 names.
function followAddress() {
  const match = /^#L(\d+)H(\d+)$/.exec(location.hash);
  if (!match) return false;
  const [layer, head] = match.slice(1).map(Number);
  for (const [stack, { modules }] of page.stacks.entries()) {
    const module = modules.findIndex((one) => one.layer === layer);
    const place = module < 0 ? -1 : modules[module].heads.indexOf(head);
    if (place < 0) continue;
    if (stack !== state.stack) changeStack(stack, module, place);
    chooseHead(module, place, "address");
    return true;
  }
  return false;
}

// A frame without an origin of its own (in a notebook) may not change its address.
function keepAddress(hash) {
  if (location.protocol !== "about:") history.replaceState(null, "", hash);
}

function layerName(stack, module) {
  return page.stacks.length > 1 ? t(`layer.${stack.kind}`, { index: module.index }) : "";
}

// A text made visible: characters that show nothing are named by their code points.
function visible(text) {
  if (/[^\s\p{C}\p{Z}]/u.test(text)) return text;
  const codes = [...text].map((one) => (one === " " ? "␣" : `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`));
  return codes.length ? codes.join(" ") : t("word.empty");
}

function label(unit, attributes = {}) {
  return el("bdi", { class: unit.special ? "word special" : "word", ...attributes }, visible(unit.label));
}

// A token in a sentence of ours: with its place where the text has several that look alike.
function mention(unit, units) {
  const several = units.filter((other) => other.label === unit.label).length > 1;
  const start = units === scene.rows ? scene.stack.rows.start : scene.stack.columns.start;
  return el("span", {}, label(unit), several ? el("span", { class: "place", text: String(start + unit.places[0]) }) : null);
}

function pairOf(row, column) {
  return [mention(scene.rows[row], scene.rows), " → ", mention(scene.columns[column], scene.columns)];
}

// Work in pieces, so that the page answers meanwhile. A later call with the same name ends an earlier one.
const running = new Map();

async function inPieces(name, items, work) {
  const mine = {};
  running.set(name, mine);
  let since = performance.now();
  for (const item of items) {
    work(item);
    if (performance.now() - since < 14) continue;
    await new Promise((resolve) => setTimeout(resolve));
    if (running.get(name) !== mine) return false;
    since = performance.now();
  }
  return true;
}
