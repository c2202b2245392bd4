// Files the reader takes away: tables as CSV, figures as SVG and PNG. Made in the page, saved through a blob link.

function save(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function fileName(part, ending) {
  const safe = `attnprobe-${page.model}-${part}`.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 90);
  return `${safe}.${ending}`;
}

// RFC 4180; the mark in front lets spreadsheets see that it is UTF-8.
function csvText(rows) {
  const quoted = (value) => {
    const text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `\ufeff${rows.map((row) => row.map(quoted).join(",")).join("\r\n")}\r\n`;
}

function saveCsv(part, rows) {
  save(fileName(part, "csv"), new Blob([csvText(rows)], { type: "text/csv;charset=utf-8" }));
}

const KEPT_STYLES = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity"],
  ...["font-size", "font-weight", "font-family", "text-anchor", "paint-order", "stroke-linejoin"],
];

// A drawing that needs no style sheet: what the page's classes say is written into each element.
function standalone(drawing) {
  const copy = drawing.cloneNode(true);
  const before = [drawing, ...drawing.querySelectorAll("*")];
  const after = [copy, ...copy.querySelectorAll("*")];
  before.forEach((node, i) => {
    const style = node.isConnected ? getComputedStyle(node) : null;
    const above = style && node !== drawing ? getComputedStyle(node.parentNode) : null;
    for (const name of style ? KEPT_STYLES : []) {
      const value = style.getPropertyValue(name);
      const inherited = above && name !== "opacity" && above.getPropertyValue(name) === value;
      if (value !== "" && !inherited) after[i].setAttribute(name, value);
    }
    after[i].removeAttribute("class");
    after[i].removeAttribute("style");
  });
  const { width, height } = sizeOf(drawing);
  furnish(copy, { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` }, []);
  const paper = getComputedStyle(document.body).backgroundColor;
  copy.prepend(svg("rect", { width, height, fill: paper }));
  return new XMLSerializer().serializeToString(copy);
}

function sizeOf(drawing) {
  return { width: Number(drawing.getAttribute("width")), height: Number(drawing.getAttribute("height")) };
}

function saveSvg(part, drawing) {
  save(fileName(part, "svg"), new Blob([standalone(drawing)], { type: "image/svg+xml" }));
}

function savePng(part, drawing) {
  const { width, height } = sizeOf(drawing);
  const address = URL.createObjectURL(new Blob([standalone(drawing)], { type: "image/svg+xml" }));
  const picture = new Image();
  picture.addEventListener("load", () => {
    const canvas = el("canvas", { width: width * 2, height: height * 2 });
    canvas.getContext("2d").drawImage(picture, 0, 0, width * 2, height * 2);
    canvas.toBlob((blob) => save(fileName(part, "png"), blob));
    URL.revokeObjectURL(address);
  });
  picture.src = address;
}
