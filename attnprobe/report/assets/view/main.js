// One head enlarged, and the start of the page.

const large = { views: {} };

function buildHead() {
  large.title = el("h2", { id: "head-title" });
  large.kind = el("span", { class: "quiet" });
  const steps = [["head.before", -1, "‹"], ["head.after", 1, "›"]].map(([key, step, sign]) => button(sign, () => stepHead(step), { class: "step", "aria-label": t(key), title: t(key) }));
  const tabs = VIEWS.map((view) => button(t(`view.${view}`), () => showView(view), { data: { view } }));
  large.tabs = el("div", { class: "segments", role: "group", "aria-label": t("view") }, tabs);
  large.views = { matrix: buildSheet(), lines: buildLines(), neurons: buildNeurons() };
  large.reading = buildReading();
  byId("head").append(el("div", { class: "head-top" }, steps[0], large.title, steps[1], large.kind, large.tabs), el("p", { class: "small", id: "mass", role: "status" }), ...Object.values(large.views), large.reading);
  byId("legend").append(weightLegend());
  const draw = { matrix: drawSheet, lines: drawLines, neurons: drawNeurons };
  large.draw = () => draw[state.view]();
  const refresh = { matrix: refreshSheet, lines: paintLines, neurons: drawNeurons };
  on("scene", drawHead);
  on("head", drawHead);
  on("focus", () => refresh[state.view]());
  drawToWidth(byId("head"), () => matrix && large.draw());
}

function showView(view) {
  state.view = view;
  drawHead();
}

function drawHead() {
  if (!matrix) return;
  for (const [name, node] of Object.entries(large.views)) node.hidden = name !== state.view;
  for (const tab of large.tabs.children) tab.setAttribute("aria-pressed", String(tab.dataset.view === state.view));
  large.reading.hidden = state.view === "neurons";
  large.title.textContent = matrix.name;
  large.kind.textContent = layerName(chosenStack(), chosenModule());
  forgetPlaces();
  large.draw();
  fillReading();
}

// A cursor or focus beyond the pattern's edge is none.
function forgetPlaces() {
  const { cursor } = sheet;
  if (cursor && (cursor[0] >= matrix.R || cursor[1] >= matrix.C)) sheet.cursor = null;
  if (state.query === null && state.key === null && !document.activeElement?.matches("#sheet")) sheet.cursor = null;
  sheet.over = null;
  lines.over = null;
  reading.over = null;
}

// The head before or after this one, layer by layer, without end.
function stepHead(step) {
  const all = chosenStack().modules.flatMap((module, m) => module.heads.map((_, place) => [m, place]));
  const now = all.findIndex(([m, place]) => m === state.module && place === state.place);
  chooseHead(...all[(now + step + all.length) % all.length]);
}

// The scale of the weights, with ticks where a square root puts them.
function weightLegend() {
  const canvas = el("canvas", { width: DEEPEST + 1, height: 1, role: "img", "aria-label": t("legend") });
  const paint = () => {
    const pen = canvas.getContext("2d");
    for (let x = 0; x <= DEEPEST; x += 1) {
      pen.fillStyle = shades.css[x];
      pen.fillRect(x, 0, 1, 1);
    }
  };
  paint();
  on("theme", paint);
  const ticks = [0, 0.05, 0.25, 0.5, 1].map((tick) => el("span", { text: String(tick), style: { left: `${Math.sqrt(tick) * 100}%` } }));
  return el("div", { class: "legend" }, el("div", { class: "legend-scale" }, canvas, el("div", { class: "legend-ticks", "aria-hidden": "true" }, ticks)), el("span", { class: "small", text: t("legend") }));
}

function complain(error) {
  const notice = byId("failure");
  notice.hidden = false;
  notice.textContent = t("page.failed", { error: String(error && error.message ? error.message : error) });
  console.error(error);
}

function ready() {
  if (document.documentElement.dataset.ready) return;
  document.documentElement.dataset.ready = "yes";
  performance.mark("attnprobe-ready");
}

async function start() {
  document.documentElement.classList.add("scripted");
  buildTheme();
  mixShades();
  on("theme", mixShades);
  await loadStacks();
  buildNotices();
  on("grid", ready);
  buildHead();
  buildGrid();
  buildControls();
  changeScene({});
  followAddress();
  on("theme", () => emit("scene"));
  window.addEventListener("hashchange", followAddress);
  window.addEventListener("scroll", () => tip.hide(), { passive: true });
}

start().catch(complain);
