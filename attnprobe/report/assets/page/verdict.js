// What a head does by both kinds of evidence, where it looks and what can be read off its output; and whether the model uses that.

const MOST_SHOWN = 4;

function verdictBlock(layer, head) {
  const record = page.profiles?.heads[layer][head];
  const parts = [...(record ? joinedParts(record, layer, head) : []), ...useParts(layer, head)];
  return parts.length ? [block("joined.title", ...parts)] : [];
}

function joinedParts(record, layer, head) {
  const said = [...Object.entries(record.kinds).map(([kind, found]) => kindSentence(kind, found)), ...otherSentences(record)];
  const sentences = said.filter(Boolean);
  return [
    ...(sentences.length ? sentences : [t("joined.nothing")]).map((text) => el("p", { class: "joined", text })),
    entropySentence(record.entropy),
    evidenceTable(record, layer, head),
  ];
}

// One kind of evidence in words; nothing where neither label nor probe shows anything.
function kindSentence(kind, { attention, probe, agreement }) {
  if (!attention.length && !probe.some((task) => task.holds)) return "";
  const best = probe.find((task) => task.holds);
  return t(agreement === "attention only" && !probe.length ? "joined.unprobed" : `joined.${agreement}`, {
    kind: t(`family.${kind}`),
    list: cut(distinct(attention).map(labelText)).join(t("list.comma")),
    task: best ? t("joined.task", { task: taskName(best.task), value: points(best.selectivity) }) : "",
  });
}

function otherSentences({ other }) {
  const families = [...new Set(other.map((found) => found.family))];
  const list = (family) => other.filter((found) => found.family === family).map(labelText).join(t("list.comma"));
  return families.map((family) => t("joined.other", { family: named(`family.${family}`, family), list: list(family) }));
}

function entropySentence(entropy) {
  if (!entropy) return null;
  const interval = span(entropy.low, entropy.high, plain);
  const values = { class: named(`joined.class.${entropy.class}`, entropy.class), value: plain(entropy.value), interval };
  return el("p", { class: "quiet", text: t("joined.entropy", values) });
}

function taskName(task) {
  return named(`task.${task}`, task);
}

// One label per text: `dep:obj` and `udep:obj` are one finding.
function distinct(found) {
  const seen = new Set();
  return found.filter((one) => !seen.has(tagOf(one)) && seen.add(tagOf(one)));
}

function cut(list) {
  return list.length > MOST_SHOWN ? [...list.slice(0, MOST_SHOWN), t("list.more", { n: list.length - MOST_SHOWN })] : list;
}

// A row for each kind: whether the two agree, the labels, the probes.
function evidenceTable(record, layer, head) {
  const columns = columnsOf(["joined.kind", "text"], ["joined.attention", "text"], ["joined.probe", "text"]);
  const rows = Object.entries(record.kinds).map(([kind, { attention, probe, agreement }]) => [
    { text: t(`family.${kind}`), note: t(`agreement.${agreement}`) },
    evidenceCell(distinct(attention).map(labelEvidence), t("joined.no_label")),
    evidenceCell(probe.map(probeEvidence), t("agreement.not probed")),
  ]);
  const site = named(`value.${page.profiles.site}`, page.profiles.site);
  const caption = `${t("joined.caption", { site })}${t("list.sentence")}${probeIntervals()}`;
  return dataTable(`verdict-${headName(layer, head)}`, caption, columns, rows, "compact");
}

function evidenceCell(lines, otherwise) {
  if (!lines.length) return { text: otherwise };
  const items = lines.map(({ name, value, held }) =>
    el("li", { class: held ? null : "quiet" }, el("span", { text: name }), el("span", { class: "note", text: value })),
  );
  const all = lines.map(({ name, value }) => `${name} ${value}`).join("; ");
  if (items.length <= MOST_SHOWN) return { node: el("ul", { class: "evidence" }, items), value: all };
  const more = el("details", {}, el("summary", { text: t("list.more", { n: items.length - MOST_SHOWN }) }));
  more.append(el("ul", { class: "evidence" }, items.slice(MOST_SHOWN)));
  return { node: el("div", {}, el("ul", { class: "evidence" }, items.slice(0, MOST_SHOWN)), more), value: all };
}

// A relation's gain over its baseline; for a place, the share of attention.
function labelEvidence(found) {
  const value = isNumber(found.difference)
    ? `${points(found.difference)} (${span(found.difference_low, found.difference_high, points)})`
    : `${percent(found.score)} (${span(found.low, found.high, percent)})`;
  return { name: labelText(found), value, held: true };
}

function probeEvidence(task) {
  const interval = span(task.selectivity_low, task.selectivity_high, points);
  const value = `${points(task.selectivity)} (${interval}), ${t("tip.n", { cases: count(task.n) })}`;
  const sign = task.holds ? "✓ " : "";
  return { name: `${sign}${taskName(task.task)}`, value: task.holds ? value : `${value} ${t("joined.not_held")}`, held: task.holds };
}

// What changes in the probe on the final states when this head is taken away; else which heads that was asked of.
function useParts(layer, head) {
  if (!page.use) return [];
  const cases = page.use.filter((one) => one.layer === layer && one.head === head);
  if (!cases.length) {
    const names = [...new Set(page.use.map((one) => headName(one.layer, one.head)))];
    const links = names.flatMap((name, i) => [i ? t("list.comma") : "", el("a", { href: `#${name}`, text: name })]);
    return [el("p", { class: "quiet" }, `${t("use.elsewhere")} `, links)];
  }
  return [...cases.map((one) => el("p", { class: "joined", text: useSentence(one) })), useTable(cases, layer, head)];
}

function useSentence(one) {
  const known = isNumber(one.difference_low) && isNumber(one.difference_high);
  const verdict = !known || (one.difference_low <= 0 && one.difference_high >= 0) ? "open" : one.difference < 0 ? "used" : "against";
  return t(`use.${verdict}`, { task: taskName(one.task) });
}

function useTable(cases, layer, head) {
  const changes = ["change", "random_change", "difference"];
  const loss = cases.some((one) => isNumber(one.loss));
  const columns = columnsOf(
    ...[["dim.task", "text"], ["use.accuracy"], ...changes.map((name) => [`use.${name}`]), ["use.states"]],
    ...(loss ? [["use.loss"]] : []),
    ["word.n"],
  );
  const changed = (one, name, show) => ({
    ...numberCell(one[name], show),
    note: span(one[`${name}_low`], one[`${name}_high`], show),
  });
  const rows = cases.map((one) => [
    { text: taskName(one.task) },
    numberCell(one.accuracy, percent),
    ...changes.map((name) => changed(one, name, points)),
    numberCell(one.states, small),
    ...(loss ? [changed(one, "loss", small)] : []),
    numberCell(one.n, count),
  ]);
  const caption = t("use.caption", { how: named(`use.how.${cases[0].how}`, cases[0].how) });
  return dataTable(`use-${headName(layer, head)}`, caption, columns, rows, "compact");
}

// Over all heads: whether focused heads are those of which more can be read.
function focusNote() {
  const found = page.profiles?.correlations || [];
  if (!found.length) return null;
  const items = found.map(({ task, value, low, high, n }) => {
    const verdict = low > 0 ? "broad" : high < 0 ? "focused" : "open";
    const shown = { task: taskName(task), value: fixed(value, 2), interval: span(low, high, (one) => fixed(one, 2)), n: count(n) };
    return el("li", { text: `${t("focus.one", shown)} ${t(`focus.${verdict}`)}` });
  });
  return el("section", { id: "focus" }, el("h3", { text: t("focus.title") }), el("ul", { class: "intro" }, items));
}
