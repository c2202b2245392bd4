"use strict";

// The parameters of a bertviz view: weights and vectors come as whole numbers, parts of a text as places in the whole.
function attnprobeParameters(id) {
  const { unit, ...parameters } = JSON.parse(document.getElementById(id).textContent);
  const scaled = (values) => (Array.isArray(values) ? values.map(scaled) : values / unit);
  const each = (layers, change) => layers.map((heads) => heads.map(change));
  for (const one of parameters.attention) {
    for (const name of ["attn", "queries", "keys"]) if (one[name]) one[name] = scaled(one[name]);
    if (!one.part) continue;
    const whole = parameters.attention[one.part.of];
    const [rows, columns] = [one.part.rows, one.part.columns];
    one.left_text = whole.left_text.slice(...rows);
    one.right_text = whole.right_text.slice(...columns);
    one.attn = each(whole.attn, (head) => head.slice(...rows).map((row) => row.slice(...columns)));
    if (whole.queries) one.queries = each(whole.queries, (head) => head.slice(...rows));
    if (whole.keys) one.keys = each(whole.keys, (head) => head.slice(...columns));
  }
  return parameters;
}
