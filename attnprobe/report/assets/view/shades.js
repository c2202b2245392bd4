// The colours of weights, worked out once per theme: asking for the theme at every cell would cost more than drawing it.

const DEEPEST = 255;
const shades = { css: [], ink: [], packed: null };

function mixShades() {
  const all = Array.from({ length: DEEPEST + 1 }, (_, i) => colourAt(i / DEEPEST));
  const bytes = new Uint8ClampedArray(all.flatMap((rgb) => [...rgb, 255]));
  Object.assign(shades, { css: all.map(hex), ink: all.map(inkOn), packed: new Uint32Array(bytes.buffer) });
}

// The shade of a weight: its square root, as the legend says.
function shadeOf(weight) {
  return weight > 0 ? Math.round(Math.sqrt(Math.min(1, weight)) * DEEPEST) : 0;
}
