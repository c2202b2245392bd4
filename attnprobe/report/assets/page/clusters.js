// Heads that look alike: a map on which near means alike, and the list of the groups. A group is told by lines and its number, not by a colour.

function buildClusters() {
  const holder = byId("clusters-app");
  if (!holder) return;
  if (!page.clusters) {
    holder.append(el("p", { class: "notice", text: t("missing.clusters") }));
    return;
  }
  const items = clusterItems();
  const groups = clusterGroups(items);
  const body = el("div", { class: "chart" });
  const alt = t("clusters.alt", { heads: items.length, n: groups.length });
  let drawing = null;
  const redraw = drawToWidth(body, (width) => body.replaceChildren((drawing = clusterDrawing(width, items, groups, alt))));
  on("head", redraw);
  const columns = () =>
    columnsOf(["word.head.one", "text"], ["clusters.group"], ["clusters.x"], ["clusters.y"], ["word.labels", "text"]);
  const table = () => ({
    columns: columns(),
    rows: items.map(({ layer, head, x, y, group }) => [
      headCell(layer, head),
      numberCell(group, count),
      numberCell(x, (value) => fixed(value, 3)),
      numberCell(y, (value) => fixed(value, 3)),
      { text: labelsOf(layer, head).map(labelText).join("; ") },
    ]),
  });
  const caption = t("clusters.caption", { silhouette: fixed(page.clusters.silhouette, 2), n: groups.length });
  const largest = Math.max(...groups.map(({ heads }) => heads.length));
  if (largest >= items.length - 1)
    holder.append(el("p", { class: "notice", text: t("clusters.no_groups", { n: largest, of: items.length }) }));
  const made = figure({ name: "clusters", caption, body, drawing: () => drawing, table });
  holder.append(el("div", { class: "duo wide" }, made.node, el("section", {}, groupTable(groups))));
}

function clusterItems() {
  const { place, group } = page.clusters;
  return eachHead((layer, head) => ({
    layer,
    head,
    x: place.at(layer, head, 0),
    y: place.at(layer, head, 1),
    group: group.at(layer, head),
  })).filter((item) => isNumber(item.x) && isNumber(item.y));
}

function clusterGroups(items) {
  const numbers = [...new Set(items.map((item) => item.group))].sort((a, b) => a - b);
  return numbers.map((number) => {
    const heads = items.filter((item) => item.group === number);
    return { number, heads, x: mean(heads.map((item) => item.x)), y: mean(heads.map((item) => item.y)) };
  });
}

function groupTable(groups) {
  const rows = groups.map(({ number, heads }) => {
    const names = heads.map(({ layer, head }) =>
      el("a", { href: `#${headName(layer, head)}`, text: headName(layer, head) }),
    );
    return [
      { text: String(number), value: number },
      numberCell(heads.length, count),
      { text: commonLabels(heads) },
      { node: el("span", { class: "head-list" }, names.flatMap((name) => [name, " "])), value: names.map((name) => name.textContent).join(" ") },
    ];
  });
  const columns = columnsOf(
    ["clusters.group", "text"],
    ["clusters.size"],
    ["clusters.common", "text"],
    ["clusters.heads", "text"],
  );
  return dataTable("cluster-groups", t("clusters.table"), columns, rows, "compact groups");
}

// The two commonest labels among those of more than half of a group's heads.
function commonLabels(heads) {
  const found = new Map();
  for (const { layer, head } of heads)
    for (const label of new Set(labelsOf(layer, head).map(tagOf))) found.set(label, (found.get(label) || 0) + 1);
  const sorted = [...found].filter(([, n]) => 2 * n > heads.length).sort((a, b) => b[1] - a[1]).slice(0, 2);
  const none = t(found.size ? "clusters.no_common" : "family.unlabelled");
  return sorted.map(([label, n]) => `${label} (${n})`).join(t("list.comma")) || none;
}

function clusterDrawing(width, items, groups, alt) {
  const height = Math.round(Math.min(560, Math.max(300, width * 0.72)));
  const margin = 18;
  const drawing = drawingOf(width, height, alt);
  const [xs, ys] = ["x", "y"].map((axis) => items.map((item) => item[axis]));
  const reach = (values) => [Math.min(...values), Math.max(...values)];
  const [[left, right], [low, high]] = [reach(xs), reach(ys)];
  const scale = Math.min((width - 2 * margin) / (right - left || 1), (height - 2 * margin) / (high - low || 1));
  const x = (value) => width / 2 + (value - (left + right) / 2) * scale;
  const y = (value) => height / 2 - (value - (low + high) / 2) * scale;
  for (const group of groups)
    for (const item of group.heads) drawing.append(line(x(item.x), y(item.y), x(group.x), y(group.y), "spoke"));
  for (const item of items) {
    const chosen = item.layer === state.layer && item.head === state.head;
    drawing.append(
      svg("circle", { cx: round(x(item.x)), cy: round(y(item.y)), r: 8.5, class: `spot${chosen ? " chosen" : ""}` }),
      text(x(item.x), y(item.y) + 3.5, String(item.layer), `spot-text${chosen ? " chosen" : ""}`),
    );
  }
  for (const { number, heads, x: cx, y: cy } of groups)
    if (heads.length > 2) drawing.append(text(x(cx), y(cy) + 4, t("clusters.name", { number }), "axis middle strong halo"));
  nearest(
    drawing,
    items,
    (item) => [x(item.x), y(item.y)],
    (item) => [
      el("strong", { text: `${headName(item.layer, item.head)} · ${t("clusters.group")} ${item.group}` }),
      verdict(item.layer, item.head),
    ],
  );
  return drawing;
}
