// A figure: its drawing, caption, downloads, and the same numbers as a table for those who cannot or will not read it.

// `drawing()` gives an <svg> to save (may be made for the purpose); `table()` gives {columns, rows}.
function figure({ name, caption, body, drawing, table, png }) {
  const spec = { name, caption, body, drawing, table, png };
  const note = el("figcaption", { text: caption });
  const tools = el(
    "div",
    { class: "tools" },
    button("SVG", () => saveSvg(spec.name, spec.drawing()), { title: t("tool.svg") }),
    button("PNG", () => (spec.png ? spec.png() : savePng(spec.name, spec.drawing())), { title: t("tool.png") }),
    button(t("tool.csv"), () => saveCsv(spec.name, rowsOf(spec.table())), { title: t("tool.csv.title") }),
  );
  const twin = el("details", { class: "twin" }, el("summary", { text: t("figure.twin") }));
  const fill = () => {
    const { columns, rows } = spec.table();
    twin.replaceChildren(twin.firstChild, dataTable(spec.name, spec.caption, columns, rows, "", "hidden"));
  };
  twin.addEventListener("toggle", () => twin.open && fill());
  const node = el("figure", { class: `figure figure-${name}` }, body, el("div", { class: "under" }, note, tools), twin);
  // Called when the figure shows other numbers than before.
  const update = (changes) => {
    Object.assign(spec, changes);
    note.textContent = spec.caption;
    if (twin.open) fill();
  };
  return { node, update };
}

function rowsOf({ columns, rows }) {
  const value = (cell) => (cell.value === undefined ? cell.text : cell.value);
  return [columns.map((column) => column.label), ...rows.map((row) => row.map(value))];
}

function columnsOf(...names) {
  return names.map(([key, kind]) => ({ label: t(key), kind: kind || "number" }));
}

function numberCell(value, show = plain) {
  return { text: show(value), value: isNumber(value) ? value : "" };
}

function headCell(layer, head) {
  const name = headName(layer, head);
  return { text: name, value: name, href: `#${name}` };
}
