"""How large pages are and how soon they are ready, in headless Chromium with the network off.

python benchmarks/pages.py [CORPUS] [--sentences N] [--rounds N]
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright
from transformers import BertConfig, BertModel

import attnprobe
from attnprobe.commands.measuring import REPORT_EXTRAS
from attnprobe.data import path as data_path
from attnprobe.heads.compare import compare
from attnprobe.models.model import Model
from attnprobe.report.page import write_report
from attnprobe.text.corpus import read_corpus

EXTRAS = REPORT_EXTRAS.split(",")
WORDS = [
    "the",
    "old",
    "dogs",
    "chased",
    "six",
    "cats",
    "over",
    "a",
    "wall",
    "and",
    "into",
    "the",
    "garden",
    "of",
    "the",
    "house",
    "where",
    "she",
    "lived",
]


def random_model(layers: int, heads: int, tokenizer: Any, size: int = 16) -> Model:
    """A BERT of this shape with random weights, sharper than they start, so that patterns do not compress to nothing."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=heads * size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * heads * size,
        initializer_range=0.1,
    )
    return attnprobe.load((BertModel(config).eval(), tokenizer))


def pages(folder: Path, corpus: str, sentences: int | None) -> dict[str, Path]:
    """Every page that is measured, by what it shows."""
    minilm = attnprobe.load("minilm")
    study = attnprobe.run(minilm, read_corpus(corpus), extras=EXTRAS, max_sentences=sentences)
    large = random_model(24, 16, minilm.tokenizer)
    many = attnprobe.run(large, read_corpus(corpus), extras=EXTRAS, examples=30, max_sentences=150)
    kept = f"{study.attributes['sentences_kept']:,} sentences"
    made = {
        f"report: MiniLM, 6 x 12, {kept}, {len(study.tree['examples'].children)} examples": write_report(
            study, folder / "minilm.html"
        ),
        f"report: random BERT, 24 x 16, {len(many.tree['examples'].children)} examples": write_report(
            many, folder / "large.html"
        ),
        "comparison: MiniLM with itself": write_report(compare(study, study), folder / "compared.html"),
    }
    base = random_model(12, 12, minilm.tokenizer)
    for tokens in (64, 128, 512):
        text = " ".join(WORDS[i % len(WORDS)] for i in range(tokens - 2))
        page = attnprobe.view(attnprobe.capture(base, text)).save(folder / f"view-{tokens}.html")
        made[f"viewer: random BERT, 12 x 12, {tokens} tokens"] = page
    return made


def opened(browser: Any, page: Path, rounds: int) -> list[float]:
    """Seconds from the start of navigation until everything in sight is drawn."""
    found = []
    for _ in range(rounds):
        context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        tab = context.new_page()
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
        found.append(tab.evaluate("performance.getEntriesByName('attnprobe-ready')[0].startTime") / 1000)
        context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", nargs="?", default=str(data_path("bundled")))
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        made = pages(Path(folder), options.corpus, options.sentences)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for what, page in made.items():
            ready = sorted(opened(browser, page, options.rounds))
            spread = f"{statistics.median(ready):.2f} s [{ready[0]:.2f}, {ready[-1]:.2f}]"
            print(f"{what}: {page.stat().st_size / 1e6:.2f} MB, ready in {spread}")
        browser.close()


if __name__ == "__main__":
    main()
