"""Other tools at what each is for, next to attnprobe: cost of capture over the model's own forward pass, and pages built and opened.

python benchmarks/peers.py                 every peer in a process of its own, as a table
python benchmarks/peers.py capture:nnsight one of them

Its environment: benchmarks/peers-requirements.txt. A peer that is not installed, or fails, is told with its error. Captures run on the embedded
BERT (6 layers, 12 heads), 16 texts of 128 tokens, one thread; each is set against a bare forward pass of the very model it was given, since a
task head (30,522 words) costs more than a capture. Pages show one text of 40 tokens, every layer and head, and are opened in Chromium without a
network, except that bertviz's own page gets the three libraries it loads from the network out of a local package.
"""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from timing import ratio

import attnprobe
from attnprobe.data import path

BATCH, LENGTH, SHOWN = 16, 128, 40


def ids(model: Any, rows: int, length: int) -> torch.Tensor:
    """Token ids of the bundled treebank, cut into rows."""
    text = " ".join(" ".join(sentence.words) for sentence in attnprobe.read_conllu(path("bundled")))
    found = model.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    start, end = model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
    inside = length - 2
    return torch.tensor([[start, *found[row * inside : (row + 1) * inside], end] for row in range(rows)])


def loaded(attn: str) -> tuple[Any, torch.Tensor]:
    model = attnprobe.load("minilm", attn=attn)
    return model, ids(model, BATCH, LENGTH)


def own_capture(attn: str) -> dict[str, Any]:
    model, inputs = loaded(attn)
    mask = torch.ones_like(inputs)
    return {
        "gives": f"q, k, v, pattern, context ({attn}{', recomputed' if attn == 'sdpa' else ''})",
        "thing": lambda: attnprobe.capture(model, input_ids=inputs, attention_mask=mask),
        "base": lambda: model.module(input_ids=inputs, attention_mask=mask),
        "of": f"BertModel, {attn}",
    }


def output_attentions() -> dict[str, Any]:
    model, inputs = loaded("eager")
    mask = torch.ones_like(inputs)
    return {
        "gives": "pattern",
        "thing": lambda: model.module(input_ids=inputs, attention_mask=mask, output_attentions=True),
        "base": lambda: model.module(input_ids=inputs, attention_mask=mask),
        "of": "BertModel, eager",
    }


def transformer_lens() -> dict[str, Any]:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import BertForMaskedLM

    model, inputs = loaded("eager")
    module = BertForMaskedLM(model.module.config).eval()
    module.bert.load_state_dict(model.module.state_dict(), strict=False)
    bare = copy.deepcopy(module)
    bridge = TransformerBridge.boot_transformers(str(model.source), hf_model=module, tokenizer=model.tokenizer)
    wanted = [f"blocks.{i}.attn.hook_{what}" for i in range(6) for what in ("q", "k", "v", "pattern", "z")]

    def taken() -> None:
        _, cache = bridge.run_with_cache(inputs, names_filter=wanted)
        assert set(wanted) <= set(cache.keys())  # some under a second name too

    return {
        "gives": "q, k, v, pattern, z",
        "thing": taken,
        "base": lambda: bare(input_ids=inputs),
        "of": "BertForMaskedLM, eager",
    }


def nnsight() -> dict[str, Any]:
    from nnsight import NNsight

    model, inputs = loaded("eager")
    bare = copy.deepcopy(model.module)
    wrapped = NNsight(model.module)
    mask = torch.ones_like(inputs)

    def taken() -> None:
        saved = []
        with wrapped.trace(input_ids=inputs, attention_mask=mask):
            for layer in wrapped.encoder.layer:
                attention = layer.attention.self
                for part in (attention.query, attention.key, attention.value):
                    saved.append(part.output.save())
                saved.append(attention.output[0].save())
                saved.append(attention.output[1].save())
        assert saved[-1].shape[-1] == LENGTH

    return {
        "gives": "q, k, v (unsplit), pattern, context",
        "thing": taken,
        "base": lambda: bare(input_ids=inputs, attention_mask=mask),
        "of": "BertModel, eager",
    }


def pyvene() -> dict[str, Any]:
    import pyvene as pv

    model, inputs = loaded("sdpa")
    bare = copy.deepcopy(model.module)
    mask = torch.ones_like(inputs)
    parts = [
        {
            "component": f"encoder.layer[{i}].attention.self.{what}.output",
            "intervention": pv.CollectIntervention(),
        }
        for i in range(6)
        for what in ("query", "key", "value")
    ]
    wrapped = pv.IntervenableModel(parts, model=model.module)

    def taken() -> None:
        (_, collected), _ = wrapped({"input_ids": inputs, "attention_mask": mask}, unit_locations=None)
        assert len(collected) == len(parts)

    return {
        "gives": "q, k, v (unsplit); no pattern",
        "thing": taken,
        "base": lambda: bare(input_ids=inputs, attention_mask=mask),
        "of": "BertModel, sdpa",
    }


CAPTURES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "attnprobe": ("attnprobe", lambda: own_capture("sdpa")),
    "attnprobe-eager": ("attnprobe", lambda: own_capture("eager")),
    "output_attentions": ("transformers", output_attentions),
    "transformer-lens": ("transformer-lens", transformer_lens),
    "nnsight": ("nnsight", nnsight),
    "pyvene": ("pyvene", pyvene),
}


def measured_capture(name: str, rounds: int) -> dict[str, Any]:
    package, prepare = CAPTURES[name]
    found = prepare()
    with torch.no_grad():
        cost = ratio(found["thing"], found["base"], rounds=rounds)
    return {"package": package, "gives": found["gives"], "of": found["of"], "ratio": str(cost)}


def shown() -> tuple[Any, list[str], Any]:
    """The patterns of one text as transformers gives them, its tokens, and our capture of it."""
    model = attnprobe.load("minilm", attn="eager")
    text = ids(model, 1, SHOWN)
    with torch.no_grad():
        found = model.module(input_ids=text, output_attentions=True).attentions
    return found, model.tokenizer.convert_ids_to_tokens(text[0].tolist()), attnprobe.capture(model, input_ids=text)


def bertviz_page(kind: str) -> Callable[[], str]:
    import bertviz

    attentions, tokens, _ = shown()
    build = getattr(bertviz, f"{kind}_view")

    def page() -> str:
        parts = build(attentions, tokens, html_action="return").data
        return f'<html><body><div id="page">{parts}</div></body></html>'

    return page


def through_attnprobe(kind: str) -> Callable[[], str]:
    _, _, taken = shown()
    return lambda: attnprobe.to_bertviz(taken, kind).html


def own_view() -> Callable[[], str]:
    _, _, taken = shown()
    return lambda: attnprobe.view(taken).html


def inspectus_page() -> Callable[[], str]:
    import inspectus
    from IPython import display

    attentions, tokens, _ = shown()
    kept: list[str] = []
    display.display = lambda shown_part: kept.append(shown_part.data)

    def page() -> str:
        kept.clear()
        inspectus.attention(attentions, tokens)
        return "<html><body>" + "".join(kept) + "</body></html>"

    return page


PAGES: dict[str, tuple[str, Callable[[], Callable[[], str]]]] = {
    "attnprobe": ("attnprobe", own_view),
    "bertviz-head": ("bertviz", lambda: bertviz_page("head")),
    "bertviz-model": ("bertviz", lambda: bertviz_page("model")),
    "bertviz-head-through-attnprobe": ("attnprobe", lambda: through_attnprobe("head")),
    "bertviz-model-through-attnprobe": ("attnprobe", lambda: through_attnprobe("model")),
    "inspectus": ("inspectus", inspectus_page),
}


def measured_page(name: str, rounds: int) -> dict[str, Any]:
    package, prepare = PAGES[name]
    build = prepare()
    build()
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        page = build()
        spent.append(time.process_time() - began)
    found = {"package": package, "build_seconds": sorted(spent)[rounds // 2], "megabytes": len(page.encode()) / 1e6}
    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        found |= {f"offline_{key}": value for key, value in opened(file, False).items()}
        if package == "bertviz":
            found |= {f"with_libraries_{key}": value for key, value in opened(file, True).items()}
    return found


@contextmanager
def browser() -> Iterator[Callable[[Path, bool], dict[str, Any]]]:
    """Opens pages: seconds until something is drawn and the page is quiet, and how much is drawn."""
    import shutil

    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    flags = ["--no-sandbox", "--disable-gpu"]

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=flags)

        def opened(file: Path, libraries: bool) -> dict[str, Any]:
            page = running.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.route(re.compile("^https?://"), lambda route: answer(route, libraries))
            began = time.monotonic()
            page.goto(file.as_uri(), timeout=120_000)
            drawn = page.evaluate(DRAWN)
            return {"open_seconds": time.monotonic() - began, "drawn": drawn}

        yield opened
        running.close()


DRAWN = """async () => {
  // the number of marks (SVG shapes, canvases), once it stays the same for half a second; at most a minute
  const count = () => document.querySelectorAll("svg line, svg path, svg rect, canvas").length;
  let before = -1, still = 0;
  for (let i = 0; i < 600 && still < 5; i++) {
    await new Promise(requestAnimationFrame);
    await new Promise(done => setTimeout(done, 100));
    const now = count();
    still = now === before ? still + 1 : 0;
    before = now;
  }
  return before;
}"""


def answer(route: Any, libraries: bool) -> None:
    """Refuse the network; or hand out bertviz's libraries from the local packages."""
    from importlib.metadata import files

    local = {"d3": ("mpld3", "d3.v5.min.js"), "jquery": ("xstatic-jquery", "jquery.min.js")}
    local["require"] = ("nbclassic", "components/requirejs/require.js")
    url = route.request.url.rsplit("/", 1)[-1]
    name = next((name for name in local if url.startswith(name)), None)
    if not libraries or name is None:
        route.abort()
        return
    package, end = local[name]
    file = next(file for file in files(package) or () if str(file).endswith(end))
    route.fulfill(body=Path(file.locate()).read_text(encoding="utf-8"), content_type="text/javascript")


def one(what: str, rounds: int) -> dict[str, Any]:
    kind, _, name = what.partition(":")
    package = (CAPTURES if kind == "capture" else PAGES)[name][0]
    try:
        found = measured_capture(name, rounds) if kind == "capture" else measured_page(name, rounds)
    except Exception as error:  # a peer that fails is a result, told with its error
        return {"what": what, "package": package, "error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"}
    try:
        found["version"] = version(package)
    except PackageNotFoundError:
        found["version"] = attnprobe.__version__
    return {"what": what, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="capture:NAME or page:NAME; all of them by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--here", action="store_true", help="in this process, as one line of JSON")
    options = parser.parse_args()
    names = options.what or [*(f"capture:{name}" for name in CAPTURES), *(f"page:{name}" for name in PAGES)]
    if options.here:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        for name in names:
            print("\nRESULT", json.dumps(one(name, options.rounds)), flush=True)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for name in names:
        command = [sys.executable, __file__, "--here", "--rounds", str(options.rounds), name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        print(lines[-1].removeprefix("RESULT ") if lines else f"{name}: {done.stderr[-300:]}", flush=True)


if __name__ == "__main__":
    main()
