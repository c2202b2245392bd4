// Elements, the tooltip, the live region, and how parts of the page tell each other of a change.
// Text of the study enters the document here, and only as text nodes.

const SVG = "http://www.w3.org/2000/svg"; // a name, not an address: nothing is loaded
const AS_PROPERTY = new Set(["value", "checked", "hidden", "disabled", "selected", "open"]);

function el(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "style") setStyle(node, value);
    else if (typeof value === "function") node.addEventListener(name, value);
    else if (AS_PROPERTY.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Through the style object: the page's policy forbids style attributes.
function setStyle(node, rules) {
  for (const [name, value] of Object.entries(rules)) node.style.setProperty(name, value);
}

function byId(id) {
  return document.getElementById(id);
}

function button(label, action, attributes = {}) {
  return el("button", { type: "button", click: action, ...attributes }, label);
}

// A labelled <select>. `options`: [{value, label, group}].
function selectBox(label, options, chosen, change, attributes = {}) {
  const box = el("select", { change: () => change(box.value), ...attributes });
  let group = null;
  for (const option of options) {
    if (option.group && (!group || group.label !== option.group)) {
      group = el("optgroup", { label: option.group });
      box.append(group);
    }
    const item = el("option", { value: option.value, text: option.label });
    (option.group ? group : box).append(item);
  }
  box.value = chosen;
  return el("label", { class: "field" }, el("span", { text: label }), box);
}

// A text of the corpus, kept apart from the direction of what stands around it.
function word(text) {
  return el("bdi", { class: "word", text });
}

const tip = {
  node: byId("tip"),
  show(x, y, ...lines) {
    this.node.replaceChildren(...lines.filter(Boolean).map((line) => el("div", {}, line)));
    this.node.hidden = false;
    const { width, height } = this.node.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), document.documentElement.clientWidth - width - 8);
    const below = y + 18;
    const top = below + height > window.innerHeight - 8 ? y - height - 12 : below;
    setStyle(this.node, { left: `${Math.max(8, left)}px`, top: `${Math.max(8, top)}px` });
  },
  beside(node, ...lines) {
    const box = node.getBoundingClientRect();
    this.show(box.left + box.width / 2 - 14, box.bottom - 10, ...lines);
  },
  hide() {
    this.node.hidden = true;
  },
};

function say(text) {
  byId("live").textContent = text;
}

const listeners = new Map();

function on(event, listener) {
  listeners.set(event, [...(listeners.get(event) || []), listener]);
}

function emit(event, detail) {
  for (const listener of listeners.get(event) || []) listener(detail);
}

// Calls draw(width) whenever the node's width changes, the first time included; returns a way to draw again.
function drawToWidth(node, draw) {
  let last = 0;
  const redraw = (force) => {
    const width = Math.floor(node.clientWidth);
    if (width > 0 && (force || width !== last)) {
      last = width;
      draw(width);
    }
  };
  new ResizeObserver(() => requestAnimationFrame(() => redraw(false))).observe(node);
  return () => redraw(true);
}
