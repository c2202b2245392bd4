// Two scales that stay readable without colour vision: lightness alone orders them. Values only are coloured, never identities.

const STEPS = 128;
// Points in OKLab (lightness, green-red, blue-yellow).
const PALE = [0.972, -0.004, 0.026];
const MIDDLE = [0.68, -0.035, 0.01];
const DEEP = [0.27, -0.012, -0.085];
const COLD = [0.42, -0.03, -0.115];
const WARM = [0.53, 0.075, 0.095];
const scaleCache = new Map();

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function mix(a, b, share) {
  return a.map((value, i) => value + (b[i] - value) * share);
}

function toRgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((value) => {
    const linear = Math.min(1, Math.max(0, value));
    return Math.round(255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
  });
}

// Colours from least to greatest: on light pages pale to deep, on dark pages deep to pale.
function scale(kind) {
  const key = `${kind} ${isDark()}`;
  if (!scaleCache.has(key)) {
    const nothing = isDark() ? [0.3, -0.002, -0.008] : [0.975, 0, 0.004];
    const along = (share) => {
      if (kind === "diverging") return share < 0.5 ? mix(COLD, nothing, share * 2) : mix(nothing, WARM, share * 2 - 1);
      const depth = isDark() ? 1 - share : share;
      return depth < 0.5 ? mix(PALE, MIDDLE, depth * 2) : mix(MIDDLE, DEEP, depth * 2 - 1);
    };
    scaleCache.set(
      key,
      Array.from({ length: STEPS }, (_, i) => toRgb(along(i / (STEPS - 1)))),
    );
  }
  return scaleCache.get(key);
}

function colourAt(share, kind = "sequential") {
  const place = Math.round(Math.min(1, Math.max(0, share)) * (STEPS - 1));
  return scale(kind)[place];
}

function css(rgb) {
  return `rgb(${rgb.join(" ")})`;
}

function hex(rgb) {
  return `#${rgb.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Black or white, whichever stands out more: at least 4.58 to 1 on any colour, which a dark grey would not reach on middling ones.
function inkOn(rgb) {
  const light = luminance(rgb);
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000000" : "#ffffff";
}

// Attention weights are mostly small: a square root keeps the small ones visible, and the legend's ticks show it.
function weightColour(weight) {
  return colourAt(Math.sqrt(weight));
}
