// Below the drawing, in words and numbers: where the query in focus looks, and who looks at the key in focus.

const READING = { first: 8, most: 600 };
const reading = { over: null, whole: false };

function buildReading() {
  reading.query = readingList("reading-query");
  reading.key = readingList("reading-key");
  on("over", (cell) => {
    reading.over = cell;
    fillReading();
  });
  on("focus", fillReading);
  return el("div", { class: "reading" }, reading.query.node, reading.key.node);
}

function readingList(id) {
  const title = el("h3", { id });
  const list = el("ol", { class: "bars", "aria-labelledby": id });
  const more = button("", () => {
    reading.whole = !reading.whole;
    fillReading();
  }, { class: "link" });
  return { title, list, more, node: el("section", { "aria-labelledby": id }, title, list, more) };
}

// Without a focus: the largest weights of the head, and the keys that take most of it.
function fillReading() {
  const [overRow, overColumn] = reading.over || [null, null];
  const row = overRow ?? state.query;
  const column = overColumn ?? state.key;
  const isRow = (i) => i !== null && i !== undefined && i < matrix.R;
  const isColumn = (i) => i !== null && i !== undefined && i < matrix.C;
  if (isRow(row)) fillBars(reading.query, titled("reading.query", scene.rows[row], scene.rows), matrix.C, (i) => matrix.at(row, i), (i) => [mention(scene.columns[i], scene.columns)]);
  else fillBars(reading.query, [t("reading.pairs")], matrix.R * matrix.C, (i) => matrix.weights[i], (i) => pairOf(Math.floor(i / matrix.C), i % matrix.C));
  if (isColumn(column)) fillBars(reading.key, titled("reading.key", scene.columns[column], scene.columns), matrix.R, (i) => matrix.at(i, column), (i) => [mention(scene.rows[i], scene.rows)]);
  else fillBars(reading.key, [t("reading.keys")], matrix.C, meanOf, (i) => [mention(scene.columns[i], scene.columns)]);
}

// Mean weight of a key over the queries that are defined.
function meanOf(column) {
  let [sum, n] = [0, 0];
  for (let row = 0; row < matrix.R; row += 1) {
    const weight = matrix.at(row, column);
    if (!isNumber(weight)) continue;
    sum += weight;
    n += 1;
  }
  return n ? sum / n : NaN;
}

function titled(key, unit, units) {
  const [before, after] = t(key).split("{token}");
  return [before, mention(unit, units), after ?? ""];
}

function fillBars({ title, list, more }, heading, length, at, name) {
  title.replaceChildren(...heading);
  const { n, found } = strongest(length, at, state.least, reading.whole ? READING.most : READING.first);
  list.replaceChildren(...found.map(([i, weight]) => bar(name(i), weight)));
  if (!n) list.append(el("li", { class: "quiet", text: t("reading.nothing") }));
  more.hidden = n <= READING.first;
  more.textContent = reading.whole ? t("reading.fewer") : t("reading.more", { n: count(Math.min(READING.most, n)) });
}

function bar(parts, weight) {
  const row = el("li", {}, el("span", { class: "bar-name" }, parts), el("span", { class: "bar-weight", text: weightText(weight) }));
  setStyle(row, { "--weight": `${Math.min(100, weight * 100).toFixed(1)}%` });
  return row;
}
