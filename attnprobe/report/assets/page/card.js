// The head card: what one head does, on what evidence. It follows the atlas, and `#L2H8` in the address opens it.

const ADDRESS = /^#L(\d+)H(\d+)$/i;

function buildCard() {
  if (!page.layers.length) {
    byId("card").remove();
    return;
  }
  on("head", fillCard);
  on("theme", fillCard);
  window.addEventListener("hashchange", followAddress);
  if (!followAddress()) fillCard();
}

// Opens the head that the address names; false where it names none.
function followAddress() {
  const found = ADDRESS.exec(location.hash);
  if (!found) return false;
  const [layer, head] = [Number(found[1]), Number(found[2])];
  if (layer >= page.layers.length || head >= page.heads) {
    say(t("card.no_such", { head: headName(layer, head) }));
    byId("card").replaceChildren(
      el("p", { class: "notice", text: t("card.no_such", { head: headName(layer, head) }) }),
    );
    return true;
  }
  chooseHead(layer, head, "address");
  return true;
}

// `from`: where the choice was made; it decides what scrolls and where the focus goes.
function chooseHead(layer, head, from) {
  state.layer = layer;
  state.head = head;
  emit("head");
  tip.hide();
  if (from !== "address") keepAddress(`#${headName(layer, head)}`);
  const card = byId("card");
  const beside = card.getBoundingClientRect().left > byId("atlas-app").getBoundingClientRect().left + 40;
  if (from === "address" || !beside) card.scrollIntoView({ block: "start" });
  if (from === "keyboard" || from === "address") byId("card-title").focus({ preventScroll: true });
  say(`${headName(layer, head)}: ${verdict(layer, head)}`);
}

// Without a jump; in a sandboxed frame the address may not be written at all.
function keepAddress(address) {
  try {
    history.replaceState(null, "", address);
  } catch {
    // The card is shown all the same.
  }
}

function fillCard() {
  const { layer, head } = state;
  const card = byId("card");
  const kind = layerKind(layer);
  const title = el(
    "h3",
    { id: "card-title", tabindex: "-1" },
    headName(layer, head),
    kind ? el("span", { class: "kind", text: kind }) : null,
  );
  const top = el(
    "div",
    { class: "card-top" },
    title,
    el("div", { class: "stepper" }, stepButton(-1, "‹", "card.previous"), stepButton(1, "›", "card.next")),
  );
  card.replaceChildren(
    top,
    el("p", { class: "verdict", text: verdict(layer, head) }),
    el(
      "p",
      { class: "small" },
      t("card.link"),
      " ",
      el("a", { href: `#${headName(layer, head)}`, text: `#${headName(layer, head)}` }),
      " · ",
      button(t("card.back"), backToAtlas, { class: "link" }),
    ),
    ...cardBlocks().flatMap((block) => block(layer, head)).filter(Boolean),
  );
}

function cardBlocks() {
  if (page.comparison) return [changeBlock, matchBlock, differenceBlock, relationChangeBlock];
  return [
    ...[verdictBlock, labelBlock, sentenceBlock, checkBlocks, profileBlock, positionBlock, histogramBlock, shapeBlock, relationBlock],
    ...[probeBlock, importanceBlock, neighbourBlock, otherBlocks, missingBlock],
  ];
}

function backToAtlas() {
  const cell = cellAt(state.layer, state.head);
  if (cell) cell.focus();
}

function stepButton(step, sign, key) {
  const all = page.layers.length * page.heads;
  const goal = (state.layer * page.heads + state.head + step + all) % all;
  const [layer, head] = [Math.floor(goal / page.heads), goal % page.heads];
  return button(el("span", { "aria-hidden": "true", text: sign }), () => chooseHead(layer, head, "atlas"), {
    "aria-label": t(key, { head: headName(layer, head) }),
    title: headName(layer, head),
  });
}

// The labels as one sentence without numbers.
function verdict(layer, head) {
  if (page.comparison) return changeVerdict(layer, head);
  const { miss } = findingsOf(layer, head);
  const labels = labelsOf(layer, head);
  if (!page.labels) return t("card.no_labels");
  if (!labels.length) return t(miss ? "verdict.none.miss" : "verdict.none", { label: miss ? labelText(miss) : "" });
  const parts = TELLING.filter((family) => labels.some((found) => found.family === family)).map((family) => {
    const own = labels.filter((found) => found.family === family);
    const list = own.slice(0, 4).map((found) => describe(found));
    if (own.length > 4) list.push(t("list.more", { n: own.length - 4 }));
    return t(`verdict.${family}`, { list: list.join(t("list.comma")) });
  });
  return parts.join(t("list.sentence"));
}

function describe(found) {
  if (!found.relation) return named(`label.${found.label}`, found.label);
  const meaning = gloss(found.relation);
  return meaning ? `${shortRelation(found.relation)} (${meaning})` : shortRelation(found.relation);
}

// A heading and what stands under it.
function block(key, ...children) {
  return el("section", { class: "block" }, el("h4", { text: t(key) }), ...children);
}

const FEW = 6;

function labelBlock(layer, head) {
  if (!page.labels) return [block("card.labels", el("p", { class: "quiet", text: t("missing.labels") }))];
  const { labels, miss } = findingsOf(layer, head);
  if (!labels.length && !miss)
    return [block("card.labels", el("p", { class: "quiet", text: t("card.nothing_close") }))];
  const name = headName(layer, head);
  const table = (rows, key) =>
    dataTable(
      `labels-${name}`,
      t(key, { head: name }),
      columnsOf(
        ["card.column.label", "text"],
        ["card.column.score"],
        ["word.n"],
        ["card.column.against"],
        ["card.column.gain"],
        ["card.column.p"],
      ),
      rows.map(labelRow),
      "compact",
    );
  if (!labels.length) {
    const why = named(`miss.${miss.missed}`, "");
    const lacks = why ? el("p", { class: "small", text: why }) : null;
    return [block("card.miss.title", table([miss], "card.miss.caption"), countedNote([miss]), lacks)];
  }
  const first = labelsOf(layer, head).slice(0, FEW);
  const parts = [table(first, "card.labels.caption")];
  if (labels.length > first.length) {
    const more = el("details", {}, el("summary", { text: t("card.all_labels", { n: labels.length }) }));
    const fill = () => more.open && more.children.length < 2 && more.append(table(labels, "card.labels.caption"));
    more.addEventListener("toggle", fill);
    parts.push(more);
  }
  const extras = labelsOf(layer, head).flatMap(otherEvidence);
  return [block("card.labels", ...parts, countedNote(labels), extras.length ? el("ul", { class: "quiet" }, extras) : null)];
}

// Which tokens the n of a place counts.
function countedNote(labels) {
  const places = labels.some(({ family }) => ["position", "sink"].includes(family));
  return places ? el("p", { class: "small", text: t("card.labels.position") }) : null;
}

function labelRow(found) {
  const relational = Boolean(found.relation);
  const name = el(
    "div",
    {},
    el("span", { class: "family", text: t(`family.${found.family}`) }),
    el("span", { text: labelText(found) }),
    found.metric ? el("span", { class: "note", text: named(`metric.${found.metric}`, found.metric) }) : null,
    relational && found.scorer && found.scorer !== "weights"
      ? el("span", { class: "note", text: named(`scorer.${found.scorer}`, found.scorer) })
      : null,
  );
  const against = relational
    ? {
        ...numberCell(found.baseline, percent),
        note: baselineName(found),
      }
    : { ...numberCell(found.threshold, (value) => `≥ ${percent(value, 0)}`), note: t("card.threshold") };
  return [
    { node: name, value: labelText(found) },
    { ...numberCell(found.score, percent), note: span(found.low, found.high, percent) },
    numberCell(found.n, count),
    against,
    relational
      ? { ...numberCell(found.difference, points), note: span(found.difference_low, found.difference_high, points) }
      : { text: MISSING, value: "" },
    relational ? numberCell(found.p_adjusted, pValue) : { text: MISSING, value: "" },
  ];
}

// What a relation's score was held against: the best fixed distance, or another guess without any model.
function baselineName({ baseline_name: name, baseline_offset: offset }) {
  if (name && !String(name).startsWith("offset")) return named(`baseline.${name}`, name);
  return isNumber(offset) ? t("baseline.distance", { offset: signed(offset) }) : "";
}

// Fields of a label that have a place of their own on the card.
const SHOWN_FIELDS = new Set(
  `family label metric relation direction scorer score low high n threshold select offset target causal controls
   baseline baseline_offset baseline_name examples difference difference_low difference_high p_adjusted`.split(/\s+/),
);

// Whatever else the study says of a label, in its own words.
function otherEvidence(found) {
  return Object.entries(found)
    .filter(([key, value]) => !SHOWN_FIELDS.has(key) && value !== null)
    .map(([key, value]) =>
      el("li", {
        text: `${labelText(found)} · ${named(`group.${key}`, key)}: ${typeof value === "object" ? flatText(value) : isNumber(value) ? plain(value) : value}`,
      }),
    );
}

function flatText(value) {
  return Object.entries(value)
    .map(
      ([key, item]) =>
        `${key} ${isNumber(item) ? plain(item) : typeof item === "object" && item ? flatText(item) : item}`,
    )
    .join(", ");
}
