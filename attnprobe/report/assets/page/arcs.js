// A pattern as arcs over the sentence, with the treebank's tree below where there is one.

const ARC = { gap: 16, font: 14, floor: 26, level: 24, bend: 0.75 }; // a cubic curve reaches three quarters of the way to its handles

// `least`: weights under it are not drawn; what that leaves out is returned as a share of the attention in sight.
function arcsDrawing(matrix, example, { least, only, wanted }) {
  const pen = el("canvas").getContext("2d");
  pen.font = `${ARC.font}px system-ui, sans-serif`;
  let x = 12;
  const places = matrix.units.map((unit) => {
    const width = Math.max(16, pen.measureText(unit.label).width);
    const place = { x, width, middle: x + width / 2 };
    x += width + ARC.gap;
    return place;
  });
  const tree = treeArcs(matrix, example);
  const reach = (a, b) => Math.min(170, 22 + Math.abs(places[a].middle - places[b].middle) * 0.32);
  const drawn = [];
  let mass = 0;
  let kept = 0;
  for (let q = 0; q < matrix.n; q += 1) {
    for (let k = 0; k < matrix.n; k += 1) {
      const weight = matrix.at(q, k);
      mass += weight;
      if (weight < least) continue;
      kept += weight;
      if (only === null || only === q) drawn.push([q, k, weight]);
    }
  }
  const above = ARC.bend * Math.max(40, ...drawn.map(([q, k]) => reach(q, k))) + 12;
  const below = tree.length ? Math.max(...tree.map((arc) => arc.level)) * ARC.level + 20 : 8;
  const drawing = drawingOf(
    Math.ceil(x),
    Math.ceil(above + ARC.floor + below),
    t("arcs.alt", { head: matrix.name, least: percent(least, 0) }),
  );
  drawing.setAttribute("role", "group"); // its words can be pressed
  for (const [q, k, weight] of drawn.sort((a, b) => a[2] - b[2]))
    drawing.append(
      attentionArc(places[q], places[k], above, reach(q, k), weight, q < k, () => weightLines(matrix, q, k)),
    );
  for (const arc of tree)
    drawing.append(...treeArc(places, arc, above + ARC.floor, (arc.level * ARC.level) / ARC.bend, wanted));
  matrix.units.forEach((unit, i) => {
    const label = svg("text", {
      x: round(places[i].middle),
      y: above + 18,
      class: `arc-word${unit.special ? " special" : ""}${only === i ? " chosen" : ""}`,
      text: unit.label,
      direction: "ltr",
    });
    drawing.append(
      svg(
        "g",
        { class: "arc-target", role: "button", tabindex: "0", "aria-pressed": String(only === i), data: { unit: i } },
        svg("rect", {
          class: "reach",
          x: round(places[i].x - 6),
          y: above,
          width: round(places[i].width + 12),
          height: ARC.floor,
        }),
        label,
      ),
    );
  });
  return { drawing, dropped: mass > 0 ? 1 - kept / mass : 0, tree: tree.length };
}

// From the query's word up and over to the key's, thicker and darker with the weight; a point marks the key.
function attentionArc(from, to, floor, height, weight, forwards, lines) {
  const shift = forwards ? 3 : -3;
  const [a, b] = from === to ? [from.middle - 7, from.middle + 7] : [from.middle + shift, to.middle - shift];
  const path = `M${round(a)} ${floor} C${round(a)} ${round(floor - height)} ${round(b)} ${round(floor - height)} ${round(b)} ${floor - 3}`;
  const arc = svg("g", { class: "arc" });
  const drawn = svg("path", {
    d: path,
    "stroke-width": round(0.8 + weight * 4.2),
    "stroke-opacity": round(0.3 + 0.7 * weight),
  });
  const point = svg("path", {
    class: "arc-point",
    d: `M${round(b)} ${floor} l-3.5 -7 h7 z`,
    "fill-opacity": round(0.35 + 0.65 * weight),
  });
  const feel = svg("path", { class: "arc-feel", d: path });
  arc.append(drawn, point, feel);
  hover(arc, lines);
  return arc;
}

// The tree's arcs between units that are in sight, each with a level.
function treeArcs(matrix, example) {
  const unitOf = new Map();
  matrix.units.forEach((unit, i) => unit.word >= 0 && !unitOf.has(unit.word) && unitOf.set(unit.word, i));
  const arcs = example.heads
    .map((head, dependent) => ({
      from: unitOf.get(dependent),
      to: unitOf.get(head - 1),
      label: example.deprels[dependent] || "",
    }))
    .filter((arc) => arc.from !== undefined && arc.to !== undefined && arc.from !== arc.to);
  levelled(arcs);
  return arcs;
}

// Gives each arc a level: it hangs below those that it spans.
function levelled(arcs) {
  const ends = (arc) => [Math.min(arc.from, arc.to), Math.max(arc.from, arc.to)];
  arcs.sort((a, b) => ends(a)[1] - ends(a)[0] - (ends(b)[1] - ends(b)[0]));
  arcs.forEach((arc, i) => {
    const [start, end] = ends(arc);
    const within = arcs.slice(0, i).filter((other) => ends(other)[0] < end && ends(other)[1] > start);
    arc.level = 1 + Math.max(0, ...within.map((other) => other.level));
  });
}

function treeArc(places, arc, ceiling, depth, wanted) {
  const [a, b] = [places[arc.from].middle, places[arc.to].middle];
  const strong = wanted && (arc.label === wanted || arc.label.split(":")[0] === wanted) ? " wanted" : "";
  const path = svg("path", {
    class: `tree-arc${strong}`,
    d: `M${round(a)} ${ceiling} C${round(a)} ${round(ceiling + depth)} ${round(b)} ${round(ceiling + depth)} ${round(b)} ${ceiling}`,
  });
  const label = text((a + b) / 2, ceiling + depth * ARC.bend + 4, arc.label, `tree-label halo${strong}`);
  return [path, label];
}
