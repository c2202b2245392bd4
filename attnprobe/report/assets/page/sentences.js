// The sentences behind a label: where its head does best, as usual, and worst, with the choices that made the score.
// Above the words stands what the head chose, below them what the treebank links.

const SHOWN = ["best", "typical", "worst"];
const CHOICE = { font: 14, gap: 13, floor: 26, level: 20, around: 1 };

function sentenceBlock(layer, head) {
  const labels = labelsOf(layer, head);
  if (!labels.length) return [];
  const told = labels.filter((found) => SHOWN.some((kind) => shownOf(found, kind)));
  if (!told.length) return [block("sentences.title", el("p", { class: "quiet", text: t("missing.sentences") }))];
  const body = el("div", { class: "shown" });
  const name = headName(layer, head);
  const made = figure({ name: "", caption: "", body, drawing: () => stacked(body), table: () => table() });
  let table = null;
  const show = (place) => {
    const found = told[place];
    const kinds = SHOWN.filter((kind) => shownOf(found, kind));
    body.replaceChildren(...kinds.map((kind) => shownSentence(found, kind, layer, head)));
    table = () => choiceTable(found, kinds, layer, head);
    const key = found.relation ? "relation" : found.family === "broad" ? "broad" : "metric";
    const norms = found.relation && found.scorer !== "weights" ? `${t("list.sentence")}${t("sentences.scorer")}` : "";
    made.update({
      name: `sentences-${name}-${fileSafe(found.label)}`,
      caption: t(`sentences.caption.${key}`, { label: labelText(found) }) + norms,
    });
  };
  const choices = told.map((found, place) => ({ value: String(place), label: labelText(found) }));
  const pick = told.length > 1 ? selectBox(t("card.column.label"), choices, "0", (value) => show(Number(value))) : null;
  loadPatterns().then(() => show(0));
  return [block("sentences.title", pick, made.node)];
}

function fileSafe(text) {
  return String(text).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
}

// One sentence of a label: {example, score, n, cases}; null where the page does not have it.
function shownOf(found, kind) {
  const one = found.examples?.[kind];
  const example = one && page.examples.find((candidate) => candidate.name === one.example);
  return example ? { ...one, sentence: example } : null;
}

// The worst of a label that fails nowhere is no counter-example.
function kindText(found, kind, one) {
  const fails = one.score < (found.relation ? 1 : (found.threshold ?? 1));
  return t(`sentences.${kind === "worst" && !fails ? "lowest" : kind}`);
}

function shownSentence(found, kind, layer, head) {
  const one = shownOf(found, kind);
  const about = one.cases
    ? t("sentences.right", { hits: one.cases.filter((made) => made.hit).length, n: one.cases.length })
    : t("sentences.score", { score: percent(one.score), n: count(one.n) });
  const heading = el("p", { class: "shown-kind" }, el("strong", { text: kindText(found, kind, one) }), ` · ${about}`);
  const open = button(t("sentences.open"), () => openSentence(one.sentence, layer, head), { class: "link small" });
  if (found.family === "broad") {
    const canvas = el("canvas", {
      class: "thumb large",
      role: "img",
      "aria-label": t("card.pattern.alt", { head: headName(layer, head), sentence: one.sentence.words.join(" ") }),
    });
    paintThumb(canvas, matrixOf(one.sentence, layer, head, { words: false, hide: false }));
    const sentence = el("p", { class: "sentence" }, word(one.sentence.words.join(" ")));
    return el("div", {}, heading, el("div", { class: "sample" }, canvas, el("div", {}, sentence, open)));
  }
  const choices = choicesOf(found, one, layer, head);
  const alt = t("sentences.alt", { kind: kindText(found, kind, one), about, sentence: one.sentence.words.join(" ") });
  const drawing = choiceDrawing(choices, alt);
  const frame = el("div", { class: "scroll", role: "group", tabindex: "0", "aria-label": alt }, drawing);
  const cut = choices.cut ? el("p", { class: "sentence small" }, word(one.sentence.words.join(" "))) : null;
  return el("div", {}, heading, cut, frame, open);
}

function openSentence(example, layer, head) {
  state.example = page.examples.indexOf(example);
  for (const pick of document.querySelectorAll("input[name=example]"))
    pick.checked = Number(pick.value) === state.example;
  openPattern(layer, head);
}

// What a drawing needs: units, arcs above ({from, to, hit, weight}), links below ({from, to, label}), and whether words are left out.
function choicesOf(found, one, layer, head) {
  const example = one.sentence;
  const matrix = matrixOf(example, layer, head, { words: Boolean(one.cases), hide: false });
  if (!one.cases) return { ...tokenChoices(found, example, matrix), matrix, links: [], cut: false };
  const unitOf = new Map(matrix.units.map((unit, i) => [unit.word, i]));
  const ahead = found.direction !== "head->dep";
  const arcs = [];
  const links = [];
  for (const made of one.cases) {
    const [asks, chosen] = [unitOf.get(made.word), unitOf.get(made.chosen)];
    const [from, to] = ahead ? [asks, chosen] : [chosen, asks];
    if (asks === undefined) continue;
    if (chosen === undefined) arcs.push({ from: asks, to: null, hit: false });
    else arcs.push({ from, to, hit: Boolean(made.hit), weight: matrix.at(from, to) });
    for (const right of made.right)
      if (unitOf.has(right)) links.push({ from: asks, to: unitOf.get(right), label: shortRelation(found.relation) });
  }
  return { ...withoutTheRest(matrix, arcs, links), matrix };
}

// Every token that is no special one, and where it looks most; right where that is what the label names.
function tokenChoices(found, example, matrix) {
  const arcs = [];
  for (let q = 0; q < matrix.n; q += 1) {
    if (matrix.units[q].special) continue;
    let to = 0;
    for (let k = 1; k < matrix.n; k += 1) if (matrix.at(q, k) > matrix.at(q, to)) to = k;
    arcs.push({ from: q, to, hit: isTarget(found, example, q, to), weight: matrix.at(q, to) });
  }
  return { units: matrix.units.map((unit, i) => ({ ...unit, place: i })), arcs };
}

function isTarget(found, example, q, k) {
  if (isNumber(found.offset)) return k - q === found.offset;
  const special = (i) => Boolean(example.special[i]);
  const tests = {
    self: () => k === q,
    first: () => k === 0,
    cls: () => k === 0 && special(k),
    sep: () => k > 0 && special(k),
    punct: () => !special(k) && /^[\p{P}\p{S}]+$/u.test(example.tokens[k]),
  };
  return (tests[found.target] || tests.self)();
}

// Only the words that take part, with a neighbour on each side; the rest becomes "…". Special tokens take no part.
function withoutTheRest(matrix, arcs, links) {
  const wanted = new Set();
  const words = matrix.units.map((unit, i) => i).filter((i) => !matrix.units[i].special);
  for (const { from, to } of [...arcs, ...links])
    for (const end of [from, to])
      if (end !== null)
        for (let i = end - CHOICE.around; i <= end + CHOICE.around; i += 1) if (words.includes(i)) wanted.add(i);
  const units = [];
  let cut = false;
  for (const i of words) {
    const lone = !wanted.has(i) && wanted.has(i - 1) && wanted.has(i + 1);
    if (wanted.has(i) || lone) units.push({ ...matrix.units[i], place: i });
    else {
      cut = true;
      if (units.at(-1)?.place !== -1) units.push({ label: "…", place: -1, special: true });
    }
  }
  return { units, arcs, links, cut };
}

function choiceDrawing({ units, arcs, links = [], matrix }, alt) {
  const pen = el("canvas").getContext("2d");
  pen.font = `${CHOICE.font}px system-ui, sans-serif`;
  let x = 10;
  const places = {};
  for (const unit of units) {
    const width = Math.max(12, pen.measureText(unit.label).width);
    unit.middle = x + width / 2;
    if (unit.place >= 0) places[unit.place] = { x, width, middle: x + width / 2 };
    x += width + CHOICE.gap;
  }
  const known = arcs.filter((arc) => arc.to !== null);
  const reach = (arc) =>
    Math.min(120, 20 + Math.abs(places[arc.from].middle - places[arc.to].middle) * 0.3);
  const above = ARC.bend * Math.max(30, ...known.map(reach)) + 12;
  levelled(links);
  const depth = Math.max(0, ...links.map((link) => link.level)) * CHOICE.level;
  const below = links.length ? depth + 16 : 4;
  const drawing = drawingOf(Math.ceil(x), Math.ceil(above + CHOICE.floor + below), alt);
  for (const arc of known) {
    const lines = () => weightLines(matrix, arc.from, arc.to);
    const drawn = attentionArc(places[arc.from], places[arc.to], above, reach(arc), 0.35, arc.from < arc.to, lines);
    drawn.classList.add(arc.hit ? "right" : "wrong");
    drawing.append(drawn);
  }
  for (const arc of arcs.filter((one) => one.to === null))
    drawing.append(text(places[arc.from].middle, above - 4, "?", "axis middle strong"));
  for (const link of links)
    drawing.append(...treeArc(places, link, above + CHOICE.floor - 2, (link.level * CHOICE.level) / ARC.bend, ""));
  for (const unit of units)
    drawing.append(
      svg("text", {
        x: round(unit.middle),
        y: round(above + 17),
        class: `arc-word${unit.special ? " special" : ""}`,
        text: unit.label,
        direction: "ltr",
      }),
    );
  return drawing;
}

// All drawings of a body in one, for SVG and PNG.
function stacked(body) {
  const parts = [...body.querySelectorAll("svg")];
  const sizes = parts.map(sizeOf);
  const whole = drawingOf(Math.max(...sizes.map((one) => one.width)), sizes.reduce((sum, one) => sum + one.height, 0), "");
  let y = 0;
  body.append(whole);
  parts.forEach((part, i) => {
    whole.append(svg("g", { transform: `translate(0 ${y})` }, [...part.cloneNode(true).childNodes]));
    y += sizes[i].height;
  });
  queueMicrotask(() => whole.remove());
  return whole;
}

function choiceTable(found, kinds, layer, head) {
  const columns = columnsOf(
    ["sentences.column.sentence", "text"],
    ["sentences.column.from", "text"],
    ["sentences.column.to", "text"],
    ["sentences.column.weight"],
    ["sentences.column.link", "text"],
    ["sentences.column.hit", "text"],
  );
  const rows = kinds.flatMap((kind) => {
    const one = shownOf(found, kind);
    const { arcs, links, matrix } = choicesOf(found, one, layer, head);
    const label = (i) => (i === null || i === undefined ? MISSING : matrix.units[i].label);
    return arcs.map((arc) => {
      const own = links.filter((link) => [arc.from, arc.to].includes(link.from));
      return [
        { text: kindText(found, kind, one) },
        { text: label(arc.from) },
        { text: label(arc.to) },
        numberCell(arc.weight, percent),
        { text: own.map((link) => `${label(link.from)} → ${label(link.to)}`).join("; ") || MISSING },
        { text: t(arc.hit ? "word.yes" : "word.no") },
      ];
    });
  });
  return { columns, rows };
}
