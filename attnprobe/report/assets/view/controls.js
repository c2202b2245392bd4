// The controls that hold for all views, and the sentences that say what they leave out.

function buildControls() {
  fillControls();
  on("stack", fillControls);
  on("scene", allowScaling);
  on("scene", tellMass);
  on("head", tellMass);
}

// Another kind of attention has other steps, texts and special tokens.
function fillControls() {
  const focused = document.activeElement?.id;
  byId("controls").replaceChildren(...[kindBox(), levelBox(), pairBox(), stepBox(), hideBoxes(), leastBox()].filter(Boolean));
  allowScaling();
  if (focused === "kind") byId("kind").focus();
}

function kindBox() {
  if (page.stacks.length < 2) return null;
  const kinds = page.stacks.map((stack, i) => ({ value: String(i), label: t(`kind.${stack.kind}`) }));
  return selectBox(t("control.kind"), kinds, String(state.stack), (value) => {
    changeStack(Number(value), 0, 0);
    chooseHead(0, 0);
  }, { id: "kind" });
}

function levelBox() {
  const merges = (axis) => new Set(axis.word.filter((word) => word >= 0)).size < axis.word.filter((word) => word >= 0).length;
  const stack = chosenStack();
  const useful = merges(stack.rows) || merges(stack.columns);
  const choose = (words) => () => {
    changeScene({ words });
    mark();
  };
  const buttons = [false, true].map((words) => button(t(words ? "level.words" : "level.tokens"), choose(words), { "data-words": String(words), disabled: words && !useful }));
  const mark = () => buttons.forEach((one) => one.setAttribute("aria-pressed", String((one.dataset.words === "true") === state.words)));
  mark();
  const note = useful ? t("level.note") : t("level.same");
  return el("div", { class: "field", role: "group", "aria-label": t("control.level"), title: note }, el("span", { text: t("control.level") }), el("div", { class: "segments" }, buttons));
}

function pairBox() {
  const { rows, columns } = chosenStack();
  const names = [...new Set([...rows.segments, ...columns.segments])].sort();
  if (names.length < 2) return null;
  const letter = (segment) => String.fromCharCode(65 + segment);
  const pairs = names.flatMap((from) => names.map((to) => ({ value: `${from}>${to}`, label: `${letter(from)} → ${letter(to)}` })));
  return selectBox(t("control.pair"), [{ value: "", label: t("pair.all") }, ...pairs], state.pair, (pair) => changeScene({ pair }), { id: "pair" });
}

function stepBox() {
  const steps = [...new Set(chosenStack().steps)];
  if (steps.length < 2) return null;
  const choices = steps.map((step) => ({ value: String(step), label: step === 0 ? t("step.first") : t("step.later", { step }) }));
  return selectBox(t("control.step"), [{ value: "", label: t("step.all") }, ...choices], state.step, (step) => changeScene({ step }), { id: "step" });
}

// One box per special token of the text, one for the first token, and whether the rest is scaled up to 1.
function hideBoxes() {
  const { rows, columns } = chosenStack();
  const specials = [...new Set([rows, columns].flatMap((axis) => axis.tokens.filter((_, place) => axis.special[place])))];
  const firstSpecial = columns.start === 0 && Boolean(columns.special[0]);
  const choices = specials.map((token) => ({ key: token, text: el("bdi", { class: "word", text: visible(token) }) }));
  if (columns.start === 0 && !firstSpecial) choices.push({ key: FIRST, text: t("hide.first") });
  const again = el("input", { type: "checkbox", id: "renormalise", checked: state.renormalise, change: () => changeScene({ renormalise: again.checked }) });
  const boxes = choices.map(({ key, text }) => {
    const box = el("input", { type: "checkbox", data: { hide: key }, checked: state.hidden.has(key) });
    box.addEventListener("change", () => {
      const hidden = new Set(state.hidden);
      if (box.checked) hidden.add(key);
      else hidden.delete(key);
      changeScene({ hidden });
    });
    return el("label", { class: "check" }, box, el("span", {}, text));
  });
  const rest = el("label", { class: "check", title: t("hide.renormalise.note") }, again, el("span", { text: t("hide.renormalise") }));
  return el("fieldset", { class: "field hide" }, el("legend", { text: t("control.hide") }), el("div", { class: "checks" }, boxes, rest));
}

// There is nothing to scale while every row is whole.
function allowScaling() {
  const outOfSight = state.hidden.size > 0 || state.pair !== "" || page.choice.window !== null;
  const box = byId("renormalise");
  box.disabled = !outOfSight;
  box.parentElement.classList.toggle("off", !outOfSight);
}

// The slider runs as a square: small thresholds matter most.
function leastBox() {
  const text = el("output", { class: "least-text", for: "least" });
  const slider = el("input", { type: "range", id: "least", min: "0", max: "100", step: "1" });
  const show = () => {
    text.textContent = state.least > 0 ? state.least.toFixed(3) : t("least.none");
    slider.setAttribute("aria-valuetext", text.textContent);
  };
  slider.value = String(Math.round(Math.sqrt(state.least / 0.5) * 100));
  slider.addEventListener("input", () => {
    changeScene({ least: 0.5 * (Number(slider.value) / 100) ** 2 });
    show();
  });
  show();
  return el("label", { class: "field" }, el("span", {}, `${t("control.least")} `, text), slider);
}

// What of the weight is not drawn, for the head in view and over all heads.
function tellMass() {
  const { mass, lost } = matrix;
  const away = ["hidden", "elsewhere", "window", "sink"].filter((name) => mass[name] > 0.0005);
  const sentences = [];
  if (away.length) {
    const list = away.map((name) => t(`mass.${name}`, { share: percent(mass[name]) })).join(t("list.comma"));
    sentences.push(t(state.renormalise ? "mass.away.scaled" : "mass.away", { head: matrix.name, share: percent(1 - mass.shown), list }));
  } else sentences.push(t("mass.all", { head: matrix.name }));
  if (state.least > 0) {
    const kept = keptBy(matrix, state.least);
    sentences.push(t("mass.dropped", { least: state.least.toFixed(3), share: percent(1 - kept.share), cells: count(kept.cells), of: count(kept.of) }));
  }
  if (lost.undefined) sentences.push(t("mass.undefined", { n: lost.undefined }));
  if (lost.empty) sentences.push(t("mass.empty", { n: lost.empty }));
  byId("mass").textContent = sentences.join(t("list.stop"));
}

// The text itself, and what the page leaves out of it.
function buildNotices() {
  const { words, tokens } = Object.values(page.axes)[0];
  const text = Object.values(words).join(" ") || tokens.join(" ");
  byId("text").replaceChildren(el("bdi", { class: "quiet", text: text.length > 300 ? `${text.slice(0, 300)}…` : text }));
  const { window: shown, length, automatic, shown: heads, total } = page.choice;
  const notices = [];
  if (shown) notices.push(t(automatic ? "notice.window.automatic" : "notice.window", { first: shown[0], last: shown[1], length }));
  if (heads < total) notices.push(t("notice.heads", { shown: heads, total }));
  if (Object.values(page.axes).some((axis) => axis.unnamed)) notices.push(t("notice.unnamed"));
  byId("notices").replaceChildren(...notices.map((text) => el("p", { class: "notice", text })));
  const sources = [...new Set(page.stacks.flatMap((stack) => stack.modules.map((module) => module.source)))];
  const facts = [...sources.map((source) => t(`source.${source}`)), t("error", { bits: page.error.bits, largest: page.error.largest, mean: page.error.mean })];
  byId("facts").replaceChildren(...facts.map((text) => el("p", { text })));
}
