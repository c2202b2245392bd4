// Tables: built from rows or found in the page, sortable by a button in each heading, and downloadable.

// `columns`: [{label, kind: "number" | "text", title}]; `rows`: arrays of {text, value, href, node, note}.
function dataTable(name, caption, columns, rows, extra = "", captionClass = "") {
  const head = el(
    "tr",
    {},
    columns.map((c) => el("th", { scope: "col", "data-kind": c.kind, title: c.title, text: c.label })),
  );
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.map((cell, i) => dataCell(cell, columns[i].kind, i === 0)),
    ),
  );
  const table = el(
    "table",
    { class: `data ${extra}`, data: { name } },
    el("caption", {}, el("span", { class: captionClass, text: caption })),
    el("thead", {}, head),
    el("tbody", {}, body),
  );
  const frame = el("div", { class: "scroll", role: "group", tabindex: "0", "aria-label": caption }, table);
  return enhanceTable(table, frame);
}

function dataCell(cell, kind, first) {
  const value = cell.value === undefined ? cell.text : cell.value;
  const content = cell.node || (cell.href ? el("a", { href: cell.href, text: cell.text }) : cell.text);
  const attributes = { data: { kind, value: isNumber(value) || typeof value === "string" ? value : "" } };
  return el(
    first ? "th" : "td",
    first ? { scope: "row", ...attributes } : attributes,
    content,
    cell.note ? el("span", { class: "note", text: cell.note }) : null,
  );
}

// Adds sorting and the download; returns frame and tools together.
function enhanceTable(table, frame) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, place) => {
    const label = heading.textContent;
    const sorter = button(label, () => sortBy(table, headings, place), { class: "sort" });
    heading.replaceChildren(sorter);
  });
  const tools = el(
    "div",
    { class: "tools" },
    button(t("tool.csv"), () => saveCsv(table.dataset.name, tableRows(table)), { title: t("tool.csv.title") }),
  );
  const holder = el("div", { class: "table-holder" });
  if (frame.isConnected) frame.before(holder);
  holder.append(frame, tools);
  return holder;
}

function sortBy(table, headings, place) {
  const heading = headings[place];
  const numeric = heading.dataset.kind === "number";
  const now = heading.getAttribute("aria-sort");
  const downwards = now ? now === "ascending" : numeric;
  headings.forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", downwards ? "descending" : "ascending");
  const keyed = [...table.tBodies[0].rows].map((row) => [sortKey(row.cells[place], numeric), row]);
  const sign = downwards ? -1 : 1;
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (numeric ? a - b : a.localeCompare(b));
  });
  table.tBodies[0].append(...keyed.map(([, row]) => row));
  say(t("table.sorted", { column: heading.textContent }));
}

function sortKey(cell, numeric) {
  const value = cell.dataset.value;
  if (value === "" || value === undefined) return null;
  return numeric ? Number.parseFloat(value) : value;
}

// All rows, with the numbers behind what is shown.
function tableRows(table) {
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  return [headings, ...[...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.dataset.value))];
}
