// The pattern viewer: example sentences, a grid of heads, one head enlarged as a matrix or as arcs.

const viewer = {
  layer: "all",
  words: false,
  hide: false,
  as: "matrix",
  least: 0.1,
  only: null,
  made: null,
  matrix: null,
  thumbs: [],
};
const MANY_HEADS = 160;
const TABLE_LIMIT = 64;

function buildPatterns() {
  const holder = byId("patterns-app");
  if (!page.examples.length) {
    holder.append(el("p", { class: "notice", text: t("missing.examples") }));
    return;
  }
  state.example = 0;
  if (page.layers.length * page.heads > MANY_HEADS) viewer.layer = String(state.layer);
  const parts = ["sentences", "controls", "grid", "large"].map((name) => [
    name,
    el("div", { class: `patterns-${name}` }),
  ]);
  Object.assign(viewer, Object.fromEntries(parts));
  viewer.controls.classList.add("controls");
  holder.append(sentenceBox(), viewer.controls, el("div", { class: "pair" }, viewer.grid, viewer.large));
  buildLarge();
  on("theme", drawPatterns);
  on("head", () => viewer.thumbs.length && enlarge());
  // Drawn once the reader comes near: nothing of it is needed before.
  const near = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      near.disconnect();
      loadPatterns().then(drawPatterns);
    },
    { rootMargin: "600px" },
  );
  near.observe(holder);
}

// The search and the list of sentences: one choice of several.
function sentenceBox() {
  const search = el("input", {
    type: "search",
    placeholder: t("patterns.search.hint"),
    input: () => listSentences(list, search.value),
  });
  const list = el("div", { class: "sentence-list", role: "radiogroup", "aria-label": t("patterns.sentences") });
  listSentences(list, "");
  viewer.sentences.append(el("label", { class: "field" }, el("span", { text: t("patterns.search") }), search), list);
  return viewer.sentences;
}

function listSentences(list, wanted) {
  const needle = wanted.trim().toLowerCase();
  const found = page.examples
    .map((example, i) => [example, i])
    .filter(([example]) => example.words.join(" ").toLowerCase().includes(needle));
  list.replaceChildren(
    ...found.map(([example, i]) => {
      const pick = el("input", {
        type: "radio",
        name: "example",
        value: String(i),
        checked: i === state.example,
        change: () => chooseExample(i),
      });
      return el("label", { class: "sentence" }, pick, highlighted(example.words.join(" "), needle));
    }),
    ...(found.length ? [] : [el("p", { class: "quiet", text: t("patterns.search.none") })]),
  );
  if (needle) say(t("patterns.search.found", { n: found.length }));
}

function highlighted(sentence, needle) {
  const at = needle ? sentence.toLowerCase().indexOf(needle) : -1;
  if (at < 0) return word(sentence);
  return el(
    "bdi",
    {},
    sentence.slice(0, at),
    el("mark", { text: sentence.slice(at, at + needle.length) }),
    sentence.slice(at + needle.length),
  );
}

function chooseExample(i) {
  state.example = i;
  viewer.only = null;
  loadPatterns().then(() => {
    drawPatterns();
    fillCard();
  });
}

function chosenExample() {
  return page.examples[state.example];
}

function options() {
  return { words: viewer.words, hide: viewer.hide };
}

function drawPatterns() {
  if (!(chosenExample().pattern instanceof Table)) return;
  fillPatternControls();
  drawGrid();
  enlarge();
}

function fillPatternControls() {
  const layers = [
    { value: "all", label: t("patterns.layer.all") },
    ...page.layers.map((_, layer) => ({ value: String(layer), label: `L${layer} ${layerKind(layer)}`.trim() })),
  ];
  const change = (name) => (value) => {
    viewer[name] = name === "words" ? value === "words" : value;
    viewer.only = null;
    drawPatterns();
  };
  const levels = ["tokens", "words"].map((value) => ({ value, label: t(`patterns.level.${value}`) }));
  const specials = [...new Set(chosenExample().tokens.filter((_, i) => chosenExample().special[i]))];
  const hide = el(
    "label",
    { class: "check" },
    el("input", {
      type: "checkbox",
      id: "hide-special",
      checked: viewer.hide,
      change: (event) => change("hide")(event.target.checked),
    }),
    el("span", {}, t("patterns.hide"), " ", ...specials.map((token) => word(`${token} `))),
  );
  const focused = document.activeElement?.id;
  viewer.controls.replaceChildren(
    selectBox(t("word.layer"), layers, viewer.layer, change("layer"), { id: "pattern-layer" }),
    selectBox(t("patterns.level"), levels, viewer.words ? "words" : "tokens", change("words"), { id: "pattern-level" }),
    specials.length ? hide : el("span", { class: "quiet", text: t("patterns.no_special") }),
    el("p", { class: "small hidden-mass", id: "hidden-mass" }),
  );
  if (focused && viewer.controls.querySelector(`#${focused}`)) byId(focused).focus();
}

function drawGrid() {
  const layers = viewer.layer === "all" ? page.layers.map((_, i) => i) : [Number(viewer.layer)];
  let hidden = 0;
  viewer.thumbs = [];
  const rows = layers.map((layer) => {
    const thumbs = Array.from({ length: page.heads }, (_, head) => {
      const matrix = matrixOf(chosenExample(), layer, head, options());
      hidden += matrix.hidden;
      const canvas = el("canvas", { class: "thumb", "aria-hidden": "true" });
      paintThumb(canvas, matrix);
      const name = headName(layer, head);
      const label = labelsOf(layer, head)[0];
      const thumb = button(canvas, () => chooseThumb(layer, head), {
        class: "thumb-button",
        "aria-label": [`H${head}`, name, label && labelText(label)].filter(Boolean).join(", "),
        title: name,
        data: { layer, head },
      });
      thumb.append(el("span", { class: "thumb-name", text: `H${head}` }));
      viewer.thumbs.push(thumb);
      return thumb;
    });
    return el(
      "div",
      { class: "thumb-row" },
      el("span", { class: "thumb-layer", text: `L${layer}` }),
      el("div", { class: "thumbs" }, thumbs),
    );
  });
  viewer.grid.replaceChildren(el("p", { class: "small", text: t("patterns.grid.note") }), ...rows, weightLegend());
  const n = viewer.thumbs.length || 1;
  byId("hidden-mass").textContent = viewer.hide
    ? t("patterns.hidden", { share: percent(hidden / n), heads: n })
    : t("patterns.shown");
}

// The scale of the weights, with ticks where a square root puts them.
function weightLegend() {
  const width = 250;
  const drawing = drawingOf(width, 34, t("patterns.legend"));
  gradientInto(drawing, { kind: "sequential" }, 6, 4, width - 12, 10);
  for (const tick of [0, 0.05, 0.25, 0.5, 1]) {
    const x = 6 + Math.sqrt(tick) * (width - 12);
    drawing.append(
      line(x, 14, x, 18, "base"),
      text(x, 29, `${tick * 100}%`, `axis ${tick === 0 ? "start" : tick === 1 ? "end" : "middle"}`),
    );
  }
  return el("div", { class: "weight-legend" }, drawing, el("span", { class: "small", text: t("patterns.legend") }));
}

function chooseThumb(layer, head) {
  viewer.only = null;
  Object.assign(state, { layer, head });
  emit("head");
  keepAddress(`#${headName(layer, head)}`);
  if (viewer.large.getBoundingClientRect().top > window.innerHeight * 0.8)
    viewer.large.scrollIntoView({ block: "start" });
  say(t("patterns.enlarged", { head: headName(layer, head) }));
}

function openPattern(layer, head) {
  Object.assign(state, { layer, head });
  byId("patterns").scrollIntoView({ block: "start" });
  loadPatterns().then(() => {
    if (viewer.layer !== "all") viewer.layer = String(layer);
    drawPatterns();
  });
}

function buildLarge() {
  viewer.title = el("h3", { id: "large-title" });
  viewer.about = el("p", { class: "small" });
  const modes = ["matrix", "arcs"].map((mode) =>
    button(t(`patterns.as.${mode}`), () => showAs(mode), {
      data: { mode },
      "aria-pressed": String(mode === viewer.as),
    }),
  );
  viewer.modes = el("div", { class: "segments", role: "group", "aria-label": t("patterns.as") }, modes);
  viewer.slider = el("input", {
    type: "range",
    min: "0.02",
    max: "0.5",
    step: "0.01",
    value: String(viewer.least),
    input: () => moveSlider(),
  });
  viewer.sliderText = el("span", { class: "small" });
  viewer.arcControls = el(
    "div",
    { class: "controls arc-controls" },
    el("label", { class: "field" }, el("span", { text: t("arcs.least") }), viewer.slider),
    viewer.sliderText,
  );
  const label = t("patterns.title"); // until a sentence is drawn
  viewer.canvas = el("canvas", { class: "matrix", tabindex: "0", role: "img", "aria-label": label });
  viewer.cursor = el("div", { class: "cursor", hidden: true });
  viewer.board = el("div", { class: "board" }, viewer.canvas, viewer.cursor);
  viewer.arcs = el("div", { class: "scroll arcs", role: "group", tabindex: "0", "aria-label": t("patterns.as.arcs") });
  const body = el("div", { class: "large-body" }, viewer.arcControls, viewer.board, viewer.arcs);
  viewer.made = figure({ name: "pattern", caption: "", body, drawing: largeDrawing, table: () => largeTable() });
  viewer.large.append(el("div", { class: "card-top" }, viewer.title, viewer.modes), viewer.about, viewer.made.node);
  watchBoard();
  drawToWidth(viewer.large, () => viewer.matrix && enlarge());
}

function showAs(mode) {
  viewer.as = mode;
  for (const one of viewer.modes.children) one.setAttribute("aria-pressed", String(one.dataset.mode === mode));
  enlarge();
}

function moveSlider() {
  viewer.least = Number(viewer.slider.value);
  drawArcs();
}

function largeDrawing() {
  return viewer.as === "arcs" ? viewer.arcs.querySelector("svg") : matrixDrawing(viewer.matrix);
}

// Filled again once there is something to show.
function largeTable() {
  if (!viewer.matrix) return { columns: columnsOf(["patterns.query", "text"]), rows: [] };
  return viewer.matrix.n > TABLE_LIMIT
    ? {
        columns: columnsOf(["patterns.query", "text"]),
        rows: [[{ text: t("patterns.table.large", { n: viewer.matrix.n }) }]],
      }
    : matrixTable(viewer.matrix);
}

function enlarge() {
  const { layer, head } = state;
  const example = chosenExample();
  viewer.matrix = matrixOf(example, layer, head, options());
  viewer.title.textContent = headName(layer, head);
  const hidden = viewer.hide
    ? `${t("list.sentence")}${t("patterns.hidden.one", { share: percent(viewer.matrix.hidden) })}`
    : "";
  viewer.about.textContent = verdict(layer, head) + hidden;
  const arcs = viewer.as === "arcs";
  viewer.board.hidden = arcs;
  viewer.arcs.hidden = !arcs;
  viewer.arcControls.hidden = !arcs;
  viewer.cursor.hidden = true;
  if (arcs) drawArcs();
  else drawBoard();
  for (const thumb of viewer.thumbs)
    thumb.setAttribute(
      "aria-pressed",
      String(Number(thumb.dataset.layer) === layer && Number(thumb.dataset.head) === head),
    );
  const source = named(`patterns.source.${example.source}`, example.source);
  viewer.made.update({
    name: `pattern-${headName(layer, head)}-${example.name}`,
    caption: t("patterns.caption", {
      head: headName(layer, head),
      id: example.id,
      error: (1 / (2 * example.scale)).toFixed(3),
      source,
    }),
  });
}

function drawBoard() {
  const width = viewer.large.clientWidth - 2;
  viewer.plan = matrixPlan(viewer.matrix, Math.min(width, 640));
  paintMatrix(viewer.canvas, viewer.matrix, viewer.plan);
  viewer.canvas.setAttribute(
    "aria-label",
    t("patterns.alt", { head: viewer.matrix.name, sentence: chosenExample().words.join(" ") }),
  );
}

function drawArcs() {
  const wanted = page.relations ? shortRelation(page.relations.names[state.relation]) : "";
  const { drawing, dropped, tree } = arcsDrawing(viewer.matrix, chosenExample(), {
    least: viewer.least,
    only: viewer.only,
    wanted,
  });
  viewer.arcs.replaceChildren(drawing);
  viewer.sliderText.textContent = `${t("arcs.dropped", { least: percent(viewer.least, 0), share: percent(dropped) })}${t("list.sentence")}${t(tree ? "arcs.tree" : "arcs.no_tree")}`;
  for (const target of drawing.querySelectorAll(".arc-target")) {
    const toggle = () => focusWord(Number(target.dataset.unit));
    target.addEventListener("click", toggle);
    target.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle();
      viewer.arcs.querySelector(`[data-unit="${target.dataset.unit}"]`).focus();
    });
  }
}

// One word's arcs alone; the same word again: all of them.
function focusWord(unit) {
  viewer.only = viewer.only === unit ? null : unit;
  drawArcs();
}

// Pointer and arrow keys on the matrix: the word pair and its weight.
function watchBoard() {
  let cell = [0, 0];
  const show = ([q, k], x, y) => {
    const { left, top, size } = viewer.plan;
    viewer.cursor.hidden = false;
    setStyle(viewer.cursor, {
      left: `${left + k * size}px`,
      top: `${top + q * size}px`,
      width: `${size}px`,
      height: `${size}px`,
    });
    tip.show(x, y, ...weightLines(viewer.matrix, q, k));
  };
  const leave = () => {
    viewer.cursor.hidden = true;
    tip.hide();
  };
  viewer.canvas.addEventListener("pointermove", (event) => {
    const box = viewer.canvas.getBoundingClientRect();
    const k = Math.floor((event.clientX - box.left - viewer.plan.left) / viewer.plan.size);
    const q = Math.floor((event.clientY - box.top - viewer.plan.top) / viewer.plan.size);
    if (q < 0 || k < 0 || q >= viewer.matrix.n || k >= viewer.matrix.n) leave();
    else show((cell = [q, k]), event.clientX, event.clientY);
  });
  viewer.canvas.addEventListener("pointerleave", leave);
  viewer.canvas.addEventListener("blur", leave);
  viewer.canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Escape") leave();
    if (!step) return;
    event.preventDefault();
    cell = cell.map((value, axis) => clamp(value + step[axis], 0, viewer.matrix.n - 1));
    const box = viewer.canvas.getBoundingClientRect();
    show(
      cell,
      box.left + viewer.plan.left + (cell[1] + 1) * viewer.plan.size,
      box.top + viewer.plan.top + (cell[0] + 1) * viewer.plan.size,
    );
    const [q, k] = cell;
    say(
      `${viewer.matrix.units[q].label} ${t("patterns.to")} ${viewer.matrix.units[k].label}: ${percent(viewer.matrix.at(q, k))}`,
    );
  });
}
