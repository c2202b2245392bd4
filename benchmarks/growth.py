"""How cost grows: with the number of sentences (linear), and with their length (quadratic only there), beside the bare forward pass.

python benchmarks/growth.py [--sentences 1000 4000 16000] [--lengths 32 64 128 256 512] [--plot docs/images/growth.svg] [--json FILE]

MiniLM, 1 thread, CPU seconds (least of three runs for lengths). Sentences: short ones of the bundled treebank again and again, a whole run (plan, verification, all metrics, `dep` and `udep`
relations, tables). Lengths: 4096 tokens in sentences of one length: the bare forward pass, the metrics pass, all metrics and relations (each word's
head is the word before).
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from memory import Repeated
from streaming import PASS, bare, batches_of, long_sentences, measured

import attnprobe
from attnprobe.data import path
from attnprobe.heads.metrics import default_metrics
from attnprobe.planning import DEFAULT_RELATIONS, Options, shards_of
from attnprobe.text.batching import PlanOptions
from attnprobe.text.drops import Drops

TOKENS = 4096
PASSES = ("bare forward pass", "metrics pass", "all metrics and relations")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, nargs="*", default=[1000, 4000, 16000])
    parser.add_argument("--lengths", type=int, nargs="*", default=[32, 64, 128, 256, 512])
    parser.add_argument("--words", type=int, default=8)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = attnprobe.load("minilm", attn="sdpa")
    short = tuple(s for s in attnprobe.read_conllu(path("bundled")) if len(s) <= options.words)
    found = {
        "sentences": {n: _run(model, Repeated(short, n)) for n in options.sentences},
        "lengths": {n: _length(model, n) for n in options.lengths},
    }
    _tell(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    if options.plot is not None:
        _plot(found).savefig(options.plot)


def _run(model: attnprobe.Model, sentences: Repeated) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # repeated sentences are the point here
        return _seconds(lambda: attnprobe.run(model, sentences), 1)


def _length(model: attnprobe.Model, length: int) -> tuple[float, ...]:
    """CPU seconds of each of `PASSES` over `TOKENS` tokens in sentences of this length."""
    plan = Options((), (), plan=PlanOptions(batch_tokens=TOKENS))
    shards = list(shards_of(model, list(long_sentences(TOKENS // length, length)), plan, Drops()))
    inputs = list(batches_of(model, shards))
    chosen = (Options(PASS, ()), Options(default_metrics(), DEFAULT_RELATIONS))
    runs = [partial(bare, model, inputs), *(partial(measured, model, shards, options) for options in chosen)]
    return tuple(_seconds(run, 3) for run in runs)


def _seconds(run: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        start = time.process_time()
        run()
        spent.append(time.process_time() - start)
    return min(spent)


def _tell(found: dict[str, dict]) -> None:
    for n, seconds in found["sentences"].items():
        print(f"{n:6} sentences {seconds:8.1f} s CPU {1000 * seconds / n:8.2f} ms a sentence")
    for n, seconds in found["lengths"].items():
        told = ", ".join(f"{name} {1e6 / TOKENS * spent:.0f}" for name, spent in zip(PASSES, seconds, strict=True))
        print(f"length {n:4}, us a token: {told}")


def _plot(found: dict[str, dict]) -> Figure:
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    n, seconds = (np.array(part, float) for part in zip(*found["sentences"].items(), strict=True))
    left.loglog(n, seconds, "o-", color="#1b6ca8", label="a whole run")
    left.loglog(n, seconds[-1] * n / n[-1], ":", color="#777777", label="linear")
    left.set(xlabel="sentences", ylabel="CPU seconds", title="Cost grows with the sentences")
    left.set_xticks(n, [f"{count:,.0f}" for count in n])
    left.set_yticks(seconds, [f"{spent:.1f}" for spent in seconds])
    left.minorticks_off()
    lengths = np.array(list(found["lengths"]), float)
    table = 1e6 / TOKENS * np.array(list(found["lengths"].values())).T
    styles = (("s-", "#777777"), ("o-", "#1b6ca8"), ("^-", "#b3541e"))
    for spent, name, (line, colour) in zip(table, PASSES, styles, strict=True):
        right.plot(lengths, spent, line, color=colour, label=name)
    right.set(
        xlabel="tokens of a sentence",
        ylabel="CPU µs a token",
        title="Cost of a token grows with the length",
        ylim=(0, None),
    )
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
