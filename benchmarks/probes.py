"""What probing costs: one fit against scikit-learn's fastest solver, side by side, and a whole grid in seconds.

python benchmarks/probes.py fit [CORPUS] [--words 20000] [--task upos] [--penalty 10]     ratio to scikit-learn
python benchmarks/probes.py heads [CORPUS] [--words 20000]     every head: task and control, 3 seeds
python benchmarks/probes.py grid [CORPUS] [--words 0]          4 sites x 6 tasks, one penalty for each; then code lengths, random weights

The corpus is EWT (train for `fit` and `heads`, dev for `grid`) in the folder named by ATTNPROBE_SHARED_DATA, unless given. Extracting vectors is
left out of every time. A solver of scikit-learn is taken at the loosest tolerance at which it comes within 1e-4 of the least loss, in float64
or float32, whichever is fastest; its default tolerance is shown as well.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from timing import ratio

import attnprobe
from attnprobe.errors import InputError, explain
from attnprobe.probes.controls import RANDOM_WEIGHTS, random_weights
from attnprobe.probes.corpus import Corpus, prepare
from attnprobe.probes.evaluate import Plan, Probe, Vectors, score
from attnprobe.probes.features import SITES, Features, extract
from attnprobe.probes.linear import PENALTIES, Scaler, fit
from attnprobe.probes.softmax import Words
from attnprobe.probes.tasks import choose_tasks
from attnprobe.records import Sentence

GRID = ("upos", "xpos", "deprel", "position", "sentence_length", "tree_depth")
NEAR = 1e-4
"""Relative distance from the least loss at which two fits count as the same."""
TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fit", "heads", "grid"))
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("--words", type=int, default=None, help="at most so many words (0: all)")
    parser.add_argument("--task", default="upos")
    parser.add_argument("--penalty", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    words = options.words if options.words is not None else (0 if options.what == "grid" else 20_000)
    sentences = list(_sentences(options.corpus, options.what, words))
    model = attnprobe.load("minilm")
    tasks = GRID if options.what == "grid" else (options.task,)
    try:
        corpus = prepare(model, sentences, choose_tasks(tasks), "document")
        _refuse_few(corpus, seeds=(0, 1, 2))
    except InputError as error:
        parser.error(f"{error} Here: take more words (--words).")
    print(f"{sum(map(len, sentences))} words, {len(sentences)} sentences, {options.threads} thread(s)")
    with tempfile.TemporaryDirectory() as folder:
        sites = SITES if options.what == "grid" else ("context",)
        features = extract(model, corpus.encoded, Path(folder), sites=sites, states=False, embedding=False)
        {"fit": _fit, "heads": _heads, "grid": _grid}[options.what](model, corpus, features, options)


def _refuse_few(corpus: Corpus, seeds: tuple[int, ...]) -> None:
    """Raise where a task cannot be fitted, rather than in the middle of a fit."""
    for examples in corpus.examples:
        for seed in seeds:
            if fault := examples.fault(corpus.clusters, seed):
                raise InputError(explain(f"too few words to probe {examples.task.name}", got=fault))


def _sentences(corpus: str | None, what: str, words: int) -> Iterator[Sentence]:
    if corpus is None:
        part = "dev" if what == "grid" else "train"
        corpus = f"{os.environ['ATTNPROBE_SHARED_DATA']}/ud/en_ewt/en_ewt-ud-{part}.conllu"
    taken = 0
    for sentence in attnprobe.read_conllu(corpus):
        taken += len(sentence)
        if words and taken > words:
            return
        yield sentence


def _fit(model: attnprobe.Model, corpus: Corpus, features: Features, options: argparse.Namespace) -> None:
    """One head of each layer, all words in training."""
    [examples] = corpus.examples
    heads = [(layer, (5 * layer + 3) % features.layers[layer].heads) for layer in range(len(features.layers))]
    stacked = np.stack([features.heads("context", layer)[examples.rows, head] for layer, head in heads])
    x = torch.from_numpy(stacked)
    words = Words(Scaler.of(x)(x), torch.from_numpy(examples.y), len(examples.classes))
    arrays = {np.float64: words.x.double().numpy(), np.float32: words.x.numpy()}
    best = [_least(arrays[np.float64][i], examples.y, options.penalty) for i in range(len(heads))]

    def ours() -> None:
        fit(words, penalties=(options.penalty,))

    fitted = fit(words, penalties=(options.penalty,))
    excess = max(
        _loss(arrays[np.float64][i], examples.y, w.double().numpy(), options.penalty) / best[i] - 1
        for i, w in enumerate(fitted.weights)
    )
    print(f"{options.task}, penalty {options.penalty:g} (C = {1 / options.penalty:g}), {len(examples.classes)} classes")
    print(f"ours: {float(fitted.passes.mean()):.1f} passes a head, loss at most {excess:.1e} over the least")
    for name, theirs in _solvers(arrays, examples.y, best, options.penalty):
        print(f"  {name:55s} {ratio(theirs, ours, rounds=options.rounds)}", flush=True)


def _solvers(
    arrays: dict[type, np.ndarray], y: np.ndarray, best: list[float], penalty: float
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The fastest solver at its loosest tolerance that comes near enough, and the same at the default tolerance."""
    candidates = []
    for solver in SOLVERS:
        for dtype in (np.float64, np.float32):
            for tolerance in TOLERANCES:
                start = time.process_time()
                fitted = [_sklearn(x, y, solver, tolerance, penalty) for x in arrays[dtype]]
                spent = time.process_time() - start
                losses = [_loss(arrays[np.float64][i], y, w, penalty) for i, w in enumerate(fitted)]
                if all(loss <= least * (1 + NEAR) for loss, least in zip(losses, best, strict=True)):
                    candidates.append((spent, solver, dtype, tolerance))
                    print(
                        f"  {solver} {dtype.__name__} comes within {NEAR:g} at tol={tolerance:g}: {spent / len(best):.3f} s a head"
                    )
                    break
    _, solver, dtype, tolerance = min(candidates, key=lambda candidate: candidate[0])
    fastest64 = min(c for c in candidates if c[2] is np.float64)

    def runs(solver: str, dtype: type, tolerance: float) -> Callable[[], None]:
        return lambda: [_sklearn(x, y, solver, tolerance, penalty) for x in arrays[dtype]] and None

    yield f"fastest: {solver} {dtype.__name__} tol={tolerance:g}", runs(solver, dtype, tolerance)
    yield f"fastest in float64: {fastest64[1]} tol={fastest64[3]:g}", runs(fastest64[1], np.float64, fastest64[3])
    yield "lbfgs float64 at its default tolerance", runs("lbfgs", np.float64, 1e-4)


def _sklearn(x: np.ndarray, y: np.ndarray, solver: str, tolerance: float, penalty: float) -> np.ndarray:
    found = LogisticRegression(C=1 / penalty, solver=solver, tol=tolerance, max_iter=5000).fit(x, y)
    return np.column_stack([found.coef_, found.intercept_]).astype(np.float64)


def _least(x: np.ndarray, y: np.ndarray, penalty: float) -> float:
    return _loss(x, y, _sklearn(x, y, "newton-cholesky", 1e-8, penalty), penalty)


def _loss(x: np.ndarray, y: np.ndarray, weights: np.ndarray, penalty: float) -> float:
    scores = x @ weights[:, :-1].T + weights[:, -1]
    top = scores.max(1)
    losses = np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[np.arange(len(y)), y]
    return float(losses.sum() + penalty / 2 * np.square(weights[:, :-1]).sum())


def _heads(model: attnprobe.Model, corpus: Corpus, features: Features, options: argparse.Namespace) -> None:
    plan = Plan(corpus.examples, corpus.clusters, (0, 1, 2), mdl=False, faults=(None,))
    start = time.process_time()
    for layer in range(len(features.layers)):
        score(features.heads("context", layer), plan)
    print(
        f"{options.task} on context, task and control, 3 seeds, penalty of {len(PENALTIES)}: {time.process_time() - start:.1f} s CPU"
    )
    start = time.process_time()
    for layer in range(len(features.layers)):
        score(features.heads("context", layer), replace(plan, penalties=(options.penalty,)))
    print(f"the same with one penalty: {time.process_time() - start:.1f} s CPU")


def _grid(model: attnprobe.Model, corpus: Corpus, features: Features, options: argparse.Namespace) -> None:
    seeds = (0, 1, 2)
    start = time.process_time()
    chosen = {
        (site, examples.task.name): _penalty(features, corpus, site, examples)
        for site in SITES
        for examples in corpus.examples
    }
    told = "choosing a penalty for each site and task, on one head of each layer"
    print(f"{told}: {time.process_time() - start:.1f} s CPU", flush=True)
    whole: dict[str, float] = {}
    for name, own in (("task and control", seeds), ("one seed alone", (0,)), ("one seed with code lengths", (0,))):
        whole[name] = 0.0
        for site in SITES:
            spent = _site(features, corpus, site, chosen, own, mdl=name.endswith("lengths"))
            whole[name] += spent
            print(f"  {name}, {site}: {spent:.1f} s CPU", flush=True)
    fits = len(SITES) * len(GRID) * sum(info.heads for info in features.layers) * 2 * len(seeds)
    print(
        f"{len(SITES)} sites x {len(GRID)} tasks, task and control, {len(seeds)} seeds, {fits} fits: {whole['task and control']:.1f} s CPU"
    )
    more = whole["one seed with code lengths"] - whole["one seed alone"]
    print(f"code lengths and learning curves, one seed: {more:.1f} s CPU more", flush=True)
    print(f"random weights, one seed: {_random(model, corpus, chosen):.1f} s CPU more")


def _site(
    features: Features,
    corpus: Corpus,
    site: str,
    chosen: dict[tuple[str, str], float],
    seeds: tuple[int, ...],
    *,
    mdl: bool,
) -> float:
    """CPU seconds of all layers and tasks of one site."""
    spent = 0.0
    for layer in range(len(features.layers)):
        x = features.heads(site, layer)
        for examples in corpus.examples:
            penalties = (chosen[site, examples.task.name],)
            plan = Plan((examples,), corpus.clusters, seeds, penalties, mdl=mdl, faults=(None,))
            start = time.process_time()
            score(x, plan)
            spent += time.process_time() - start
    return spent


def _penalty(features: Features, corpus: Corpus, site: str, examples: object) -> float:
    """The penalty with the least mean loss on held-out words, over one head of each layer."""
    parts = examples.parts(corpus.clusters, 0)
    sampled = np.concatenate(
        [features.heads(site, layer)[:, layer : layer + 1] for layer in range(len(features.layers))], 1
    )
    vectors = Vectors.of(sampled, examples.rows, parts, torch.device("cpu"))
    fitted = Probe.of(vectors, examples.y, parts, PENALTIES).fitted
    return float(np.median(fitted.penalty.numpy()))


def _random(model: attnprobe.Model, corpus: Corpus, chosen: dict[tuple[str, str], float]) -> float:
    spent = 0.0
    for kind in RANDOM_WEIGHTS:
        with tempfile.TemporaryDirectory() as folder:
            drawn = random_weights(model, kind, seed=0)
            features = extract(drawn, corpus.encoded, Path(folder), states=False, embedding=False)
            for site in SITES:
                for layer in range(len(features.layers)):
                    for examples in corpus.examples:
                        penalties = (chosen[site, examples.task.name],)
                        plan = Plan((examples,), corpus.clusters, (0,), penalties, mdl=False, faults=(None,))
                        start = time.process_time()
                        score(features.heads(site, layer), plan, task_only=True)
                        spent += time.process_time() - start
    return spent


if __name__ == "__main__":
    main()
