// What a label was held against beyond its own test: the same score on random weights, and the model with the head taken out.

function checkBlocks(layer, head) {
  const labels = labelsOf(layer, head);
  return [causalBlock(labels, layer, head), controlBlock(labels, layer, head)].filter(Boolean);
}

function labelCell(found) {
  return { text: labelText(found) };
}

function causalBlock(labels, layer, head) {
  const checked = labels.filter((found) => found.causal);
  if (!checked.length) return null;
  const rows = checked.map((found) => {
    const { difference, low, high, excess, excess_low, excess_high, supported, n } = found.causal;
    return [
      labelCell(found),
      { ...numberCell(difference, small), note: span(low, high, small) },
      { ...numberCell(excess, small), note: span(excess_low, excess_high, small) },
      numberCell(n, count),
      { text: supported ? `✓ ${t("word.yes")}` : t("causal.not"), value: supported ? "yes" : "no" },
    ];
  });
  const columns = columnsOf(
    ["card.column.label", "text"],
    ["causal.difference"],
    ["causal.excess"],
    ["word.n"],
    ["causal.verdict", "text"],
  );
  const { quantity: watched, unit } = checked[0].causal;
  const caption = t("causal.caption", {
    quantity: named(`quantity.${watched}`, watched || "?"),
    unit: unit && unit !== "1" ? `, ${named(`unit.${unit}`, unit)}` : "",
  });
  return block("group.causal", dataTable(`causal-${headName(layer, head)}`, caption, columns, rows, "compact"));
}

// Changes are small numbers: three significant digits.
function small(value) {
  if (!isNumber(value)) return MISSING;
  return (
    Math.abs(value) >= 1e-4 || value === 0 ? Number(value.toPrecision(3)).toString() : value.toExponential(1)
  ).replace("-", "−");
}

function controlBlock(labels, layer, head) {
  const held = labels.filter((found) => found.controls);
  if (!held.length) return null;
  const kinds = [...new Set(held.flatMap((found) => Object.keys(found.controls)))];
  const columns = [
    ...columnsOf(["card.column.label", "text"], ["controls.here"]),
    ...kinds.map((kind) => ({ label: named(`value.${kind}`, kind), kind: "number" })),
  ];
  const rows = held.map((found) => [
    labelCell(found),
    numberCell(found.score, percent),
    ...kinds.map((kind) => {
      const { score, best } = found.controls[kind] || {};
      return {
        ...numberCell(score, percent),
        note: isNumber(best) ? t("controls.best", { value: percent(best) }) : "",
      };
    }),
  ]);
  const caption = t("controls.caption");
  return block("group.controls", dataTable(`controls-${headName(layer, head)}`, caption, columns, rows, "compact"));
}
