// Words and numbers of the page in its language.

const page = JSON.parse(byId("page-data").textContent);
const MISSING = "–";

// The text under a key, `{name}` replaced; `key.one` where n is 1 and the table has it.
function t(key, values = {}) {
  const table = page.words;
  const chosen = values.n === 1 && `${key}.one` in table ? `${key}.one` : key;
  return (table[chosen] ?? chosen).replace(/\{(\w+)\}/g, (place, name) =>
    name in values ? String(values[name]) : place,
  );
}

// A group's name in words; a group inside another is named by both.
function groupName(path) {
  const [first, ...rest] = path.split("/");
  return [named(`group.${first}`, first), ...rest.map((part) => named(`value.${part}`, part))].join(": ");
}

// For names that a user may have added: the text under the key, or the name itself.
function named(key, name) {
  return page.words[key] ?? name;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Nothing is ever "minus zero".
function fixed(value, digits) {
  if (!isNumber(value)) return MISSING;
  const shown = value.toFixed(digits);
  return (Number(shown) === 0 ? shown.replace("-", "") : shown).replace("-", "−");
}

function percent(value, digits = 1) {
  return isNumber(value) ? `${fixed(value * 100, digits)}%` : MISSING;
}

// More decimals where one would make it read as nothing.
function points(value, digits = 1) {
  if (!isNumber(value)) return MISSING;
  const size = Math.abs(value * 100);
  const shown = fixed(value * 100, size > 0 && size < 0.05 ? Math.min(3, Math.ceil(-Math.log10(size))) : digits);
  return value > 0 && Number(shown) !== 0 ? `+${shown}` : shown;
}

function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : MISSING;
}

function signed(value) {
  if (!isNumber(value)) return MISSING;
  return value > 0 ? `+${value}` : String(value).replace("-", "−");
}

function pValue(value) {
  if (!isNumber(value)) return MISSING;
  return value < 0.001 ? "< .001" : value.toFixed(3).replace(/^0/, "");
}

// A value with its unit, as prose and tooltips show it.
function quantity(value, unit) {
  if (!isNumber(value)) return t("word.undefined");
  if (unit === "share") return percent(value, 2);
  const shown = plain(value);
  return unit ? `${shown} ${named(`unit.${unit}`, unit)}` : shown;
}

// Up to four significant digits, never in exponent form for everyday sizes.
function plain(value) {
  if (!isNumber(value)) return MISSING;
  const size = Math.abs(value);
  if (Number.isInteger(value)) return size >= 1000 ? count(value).replace("-", "−") : fixed(value, 0);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("-", "−");
  return fixed(value, size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

// A value for a cell a finger wide: shares as percentages without the sign. `reach` is the largest size shown beside it.
function brief(value, unit, reach) {
  if (!isNumber(value)) return MISSING;
  if (unit === "points") return points(value, decimals(reach * 100, 1));
  if (unit === "share") return value >= 0.9995 ? "100" : fixed(value * 100, decimals(reach * 100, 1));
  const size = Math.abs(value);
  return fixed(value, size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : decimals(reach, 2));
}

// Decimals with which the largest of the values has two digits: where all are small, they do not all read 0.00.
function decimals(reach, least) {
  return reach > 0 ? Math.min(4, Math.max(least, 1 - Math.floor(Math.log10(reach)))) : least;
}

function span(low, high, show) {
  if (!isNumber(low) || !isNumber(high)) return MISSING;
  const first = show(low);
  const second = show(high);
  return `${first.endsWith("%") && second.endsWith("%") ? first.slice(0, -1) : first} – ${second}`;
}

function headName(layer, head) {
  return `L${layer}H${head}`;
}

function arrow(direction) {
  return direction.replace("->", "→");
}

// What a relation means in everyday words; empty where not known.
function gloss(relation) {
  const [family, ...rest] = relation.split(":");
  const treebank = family === "dep" || family === "udep";
  const keys = treebank ? [rest.join(":"), rest[0]] : [relation, family];
  return keys.map((key) => page.words[`rel.${key}`]).find(Boolean) || "";
}

// A relation's label without its family, for tight places.
function shortRelation(relation) {
  const cut = relation.indexOf(":");
  return cut > 0 ? relation.slice(cut + 1) : relation;
}
