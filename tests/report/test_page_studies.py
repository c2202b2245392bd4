"""Studies of many shapes, built by hand from tiny arrays, and the test that a page can be made of each.

What the models behind them could be: an encoder, a causal model, an encoder with a decoder, one layer of one head, a run in which
nothing was asked for. The numbers mean nothing; the names are the study file's.
"""

import json
from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr

from attnprobe.heads.compare import compare
from attnprobe.probes.profile import head_profiles
from attnprobe.records import Study, open_study
from attnprobe.report.page import render

SPLITS = ["select", "report", "all"]
DIRECTIONS = ["dep->head", "head->dep"]
OFFSETS = [-2, -1, 1, 2]
TARGETS = ["self", "first", "cls", "sep", "punct"]
RELATIONS = {"dep:ALL": "syntax", "dep:obj": "syntax", "udep:obj": "syntax", "coref:antecedent": "semantics"}
SCRIPT = "</script><script>document.title='taken'</script>"
HOSTILE = [
    SCRIPT,
    "<img src=x onerror=\"document.title='taken'\">",
    "&amp;",
    "a\u2028b",
    "שלום",
    "👩‍👩‍👧",
    "q̀̂",
    "'\"`${x}",
    'x,"y"',
]
"""Texts that break pages: each must show as itself."""


def coordinates(layers: int, heads: int, kinds: list[str] | None = None) -> dict:
    kinds = kinds or ["encoder"] * layers
    index = [kinds[:place].count(kind) for place, kind in enumerate(kinds)]
    return {"layer": np.arange(layers), "kind": ("layer", kinds), "index": ("layer", index), "head": np.arange(heads)}


def verification(layers: int, *, ok: bool = True, compared: bool = True, notes: tuple[str, ...] = ()) -> xr.Dataset:
    difference = np.full(layers, 3e-6 if ok else 2e-2) if compared else np.full(layers, np.nan)
    values = {
        "pattern_max_abs": difference,
        "context_max_abs": difference * 2,
        "pattern_tolerance": np.full(layers, 1e-5),
        "context_tolerance": np.full(layers, 4e-5),
        "row_sum_max_error": np.full(layers, 2e-7),
        "bitwise": np.full(layers, int(ok), dtype=np.int8),
        "rows_checked": np.full(layers, 1234 if compared else 0),
        "rows_excluded": np.full(layers, 17),
        "max_score": np.full(layers, 12.5),
    }
    attributes = {"ok": int(ok), "notes": json.dumps(list(notes))}
    return xr.Dataset({name: ("layer", value) for name, value in values.items()}, attrs=attributes)


def metrics(random: np.random.Generator, layers: int, heads: int, kinds: list[str] | None = None) -> xr.Dataset:
    share, nats, tokens = (
        {"unit": unit, "limits": np.array(limits), "source": "made up"}
        for unit, limits in (("share", (0.0, 1.0)), ("nats", (0.0, np.inf)), ("tokens", (-np.inf, np.inf)))
    )
    plain, offset, target = ["layer", "head"], ["layer", "head", "offset"], ["layer", "head", "target"]
    shapes = {"offset": (layers, heads, len(OFFSETS)), "target": (layers, heads, len(TARGETS))}
    values = {
        "entropy": (plain, random.uniform(0.1, 3, (layers, heads)), nats),
        "entropy_normalised": (plain, random.uniform(0, 1, (layers, heads)), share),
        "signed_distance": (plain, random.normal(0, 3, (layers, heads)), tokens),
        "offset_mass": (offset, random.uniform(0, 1, shapes["offset"]), share),
        "special_mass": (target, random.uniform(0, 1, shapes["target"]), share),
    }
    whole: dict = {}
    for name, (dims, value, attributes) in values.items():
        whole[name] = (dims, value, attributes)
        whole[f"{name}_low"] = (dims, value - 0.01, attributes)
        whole[f"{name}_high"] = (dims, value + 0.01, attributes)
        whole[f"{name}_count"] = (dims, np.full(value.shape, 54321.0), {"unit": "rows"})
    whole["count"] = (plain, np.full((layers, heads), 54321.0))
    return xr.Dataset(whole, {**coordinates(layers, heads, kinds), "offset": OFFSETS, "target": TARGETS})


def relations(
    random: np.random.Generator,
    layers: int,
    heads: int,
    scorers: tuple[str, ...] = ("weights",),
    names: dict | None = None,
) -> xr.Dataset:
    names = names or RELATIONS
    shape = (len(SPLITS), len(scorers), len(names), 2, layers, heads)
    accuracy = random.uniform(0, 0.9, shape)
    baseline = np.full((len(SPLITS), len(names)), 0.25)
    p = np.where(accuracy[1] - 0.25 > 0.05, 0.001, np.nan)
    full = ["split", "scorer", "relation", "direction", "layer", "head"]
    variables = {
        "accuracy": (full, accuracy),
        "low": (full, accuracy - 0.03),
        "high": (full, accuracy + 0.03),
        "n": (["split", "relation"], np.tile(np.linspace(40, 700, len(names)).round(), (len(SPLITS), 1))),
        "baseline": (["split", "relation"], baseline),
        "baseline_offset": (["split", "relation"], np.full(baseline.shape, -1.0)),
        "difference": (full, accuracy - 0.25),
        "difference_low": (full, accuracy - 0.29),
        "difference_high": (full, accuracy - 0.21),
        "p_adjusted": (full[1:], p),
        "ties": (full, np.full(shape, 2.0)),
        "no_mass": (full, np.full(shape, 1.0)),
    }
    places = {"split": SPLITS, "scorer": list(scorers), "relation": list(names), "direction": DIRECTIONS}
    kind = {"relation_kind": ("relation", list(names.values()))}
    return xr.Dataset(variables, {**coordinates(layers, heads), **places, **kind}, {"margin": 0.05, "minimum_n": 100})


def best(table: xr.Dataset) -> xr.Dataset:
    """The first head everywhere: which one is chosen is not the page's business."""
    first = table.sel(split="report").isel(scorer=0, direction=0, layer=0, head=0)
    names = table["relation"].values
    columns = {name: first[name].values for name in ("accuracy", "low", "high", "difference", "difference_low")}
    columns |= {
        name: first[name].values for name in ("difference_high", "n", "baseline", "baseline_offset", "p_adjusted")
    }
    columns |= {"layer": np.zeros(len(names), int), "head": np.zeros(len(names), int)}
    columns |= {"scorer": np.repeat("weights", len(names)), "direction": np.repeat("dep->head", len(names))}
    return xr.Dataset({name: ("relation", value) for name, value in columns.items()}, {"relation": names})


def labels(layers: int, heads: int) -> xr.Dataset:
    """In turn: a position label, two syntactic ones (one of them twice over), none with a nearest miss, none at all."""
    position = {
        "family": "position",
        "label": "previous token",
        "metric": "offset_mass",
        "offset": -1,
        "threshold": 0.5,
    }
    position |= {"score": 0.71, "low": 0.7, "high": 0.72, "n": 900, "select": 0.7, "holds": True, "short_by": -0.2}
    syntax = {"family": "syntax", "label": "dep:obj (dep->head)", "relation": "dep:obj", "direction": "dep->head"}
    syntax |= {
        "scorer": "weights",
        "score": 0.741,
        "low": 0.71,
        "high": 0.77,
        "n": 480,
        "baseline": 0.36,
        "baseline_offset": -2,
    }
    syntax |= {
        "difference": 0.381,
        "difference_low": 0.35,
        "difference_high": 0.41,
        "p_adjusted": 1e-9,
        "threshold": 0.05,
    }
    broad = {
        "family": "broad",
        "label": "broad",
        "metric": "entropy_normalised",
        "score": 0.7,
        "low": 0.69,
        "high": 0.71,
    }
    broad |= {"n": 900, "threshold": 0.8, "select": None, "holds": False, "short_by": 0.11}
    turns = [
        {"labels": [position], "nearest_miss": None},
        {"labels": [syntax, {**syntax, "relation": "udep:obj", "label": "udep:obj (dep->head)"}], "nearest_miss": None},
        {"labels": [], "nearest_miss": broad},
        {"labels": [], "nearest_miss": None},
    ]
    texts = [[json.dumps(turns[(layer * heads + head) % 4]) for head in range(heads)] for layer in range(layers)]
    rules = json.dumps({"position": "mass >= 0.5", "syntax, semantics": "p < 0.05"})
    return xr.Dataset({"labels": (["layer", "head"], np.array(texts))}, coordinates(layers, heads), {"rules": rules})


def checked_labels(layers: int, heads: int) -> xr.Dataset:
    """Labels that were also tried on random weights, and by taking the head out; with a field that the page has never heard of."""
    table = labels(layers, heads)
    causal = {"quantity": "1 - cosine", "unit": "", "difference": 0.0123, "low": 0.011, "high": 0.0136, "n": 333}
    causal |= {"excess": 0.0041, "excess_low": 0.002, "excess_high": 0.0062, "supported": True}
    kinds = {"embeddings_kept": {"score": 0.161, "best": 0.222}, "all_random": {"score": None, "best": 0.137}}
    told = table["labels"].values.astype(object)
    for place, text in np.ndenumerate(told):
        found = json.loads(text)
        for label in found["labels"]:
            label |= {"causal": causal, "controls": kinds, "agreement": {"select": 0.71, "report": 0.74}}
        told[place] = json.dumps(found)
    return table.assign(labels=(["layer", "head"], told.astype(str)))


def example(
    random: np.random.Generator,
    layers: int,
    heads: int,
    words: list[str],
    *,
    special: bool = True,
    causal: bool = False,
) -> xr.Dataset:
    """Each word one token, the last in two pieces; [CLS] and [SEP] around it where the model has special tokens."""
    inner, index = [*words, "##s"], [*range(len(words)), len(words) - 1]
    tokens = ["[CLS]", *inner, "[SEP]"] if special else inner
    index = [-1, *index, -1] if special else index
    weights = random.dirichlet(np.ones(len(tokens)), (layers, heads, len(tokens)))
    if causal:
        weights = np.tril(weights)
        weights /= weights.sum(-1, keepdims=True)
    attributes = {
        "id": "s-1",
        "document": "d",
        "tokens": json.dumps(tokens),
        "words": json.dumps(words),
        "word_index": np.array(index, dtype=np.int32),
        "special": np.array([place < 0 for place in index], dtype=np.int8),
        "heads": json.dumps([0, *[1] * (len(words) - 1)]),
        "deprels": json.dumps(["root", *["obj"] * (len(words) - 1)]),
        "scale": 255,
        "source": "recomputed",
    }
    return xr.Dataset(
        {"pattern": (["layer", "head", "query", "key"], np.rint(weights * 255).astype(np.uint8))}, attrs=attributes
    )


ATTRIBUTES = {
    "format": 1,
    "model": "tiny",
    "model_sha256": "ab" * 32,
    "family": "bert",
    "tokenizer": "TinyTokenizer",
    "attn_implementation": "eager",
    "dtype": "float32",
    "device": "cpu",
    "corpus": "made.conllu",
    "corpus_sha256": "cd" * 32,
    "label_scheme": "Universal Dependencies v2",
    "seed": 3,
    "plan": json.dumps(
        {
            "metrics": ["entropy"],
            "cluster": "document",
            "margin": 0.05,
            "max_sentences": None,
            "plan": {"batch_tokens": 2048},
        }
    ),
    "versions": json.dumps({"attnprobe": "0.1.0", "numpy": "2.0"}),
    "sentences_kept": 2001,
    "sentences_dropped": json.dumps({"too long": 4, "no words": 1}),
    "created": "2026-01-01T00:00:00+00:00",
    "documents": 37,
    "tokens": 34014,
    "unknown_tokens": 211,
    "repeated_sentences": 5,
    "cases_without_token": 6,
}


def groups_of(layers: int = 3, heads: int = 5, seed: int = 0) -> dict[str, xr.Dataset]:
    random = np.random.default_rng(seed)
    table = relations(random, layers, heads)
    return {
        "/": xr.Dataset(attrs=ATTRIBUTES),
        "/verification": verification(layers),
        "/metrics": metrics(random, layers, heads),
        "/relations": table,
        "/best": best(table),
        "/labels": labels(layers, heads),
        "/examples/e0": example(random, layers, heads, ["The", "cat", "sat"]),
        "/examples/e1": example(random, layers, heads, ["Rain", "fell", "on", "old", "roof"]),
    }


def study_of(groups: dict[str, xr.Dataset], *without: str, **attributes: object) -> Study:
    kept = {path: value for path, value in groups.items() if not path.strip("/").startswith(without or ("\0",))}
    return Study(xr.DataTree.from_dict({**kept, "/": xr.Dataset(attrs={**ATTRIBUTES, **attributes})}))


def whole() -> Study:
    return study_of(groups_of())


def one_head() -> Study:
    return study_of(groups_of(1, 1))


def causal() -> Study:
    """No special tokens, no trees, the layers of a decoder; attention to [CLS] and [SEP] undefined."""
    groups = groups_of(2, 3)
    random = np.random.default_rng(1)
    groups["/metrics"] = metrics(random, 2, 3, ["decoder", "decoder"])
    groups["/metrics"]["special_mass"][..., 2:4] = np.nan
    groups["/examples/e0"] = example(random, 2, 3, ["Once", "upon", "a", "time"], special=False, causal=True)
    del groups["/examples/e1"]
    return study_of(groups, "relations", "best", model="tiny-gpt2", family="gpt2")


def encoder_decoder() -> Study:
    """Three kinds of attention; the last layer has fewer heads, which is NaN."""
    groups = groups_of(4, 3)
    kinds = ["encoder", "encoder", "decoder", "cross"]
    groups["/metrics"] = metrics(np.random.default_rng(2), 4, 3, kinds)
    for name in groups["/metrics"].data_vars:
        groups["/metrics"][name][3, 2] = np.nan
    return study_of(groups, "relations", "best", "examples")


def undefined() -> Study:
    """NaN wherever a study may have one: a whole metric, a relation without cases, intervals."""
    groups = groups_of()
    table = groups["/metrics"]
    table["entropy_normalised"][:] = np.nan
    table["entropy"][1, 2] = np.nan
    table["entropy_low"][:] = np.nan
    for name in ("accuracy", "low", "high", "difference", "difference_low", "difference_high", "n", "baseline"):
        groups["/relations"][name].loc[{"relation": "dep:obj"}] = np.nan
    groups["/best"] = best(groups["/relations"])
    return study_of(groups, tokens=float("nan"))


def nothing_chosen() -> Study:
    """All documents on the report half: no head, direction or baseline could be chosen there."""
    groups = groups_of()
    table = groups["/relations"]
    table["n"].loc[{"split": "select"}] = 0
    for name in ("baseline", "baseline_offset", "difference", "difference_low", "difference_high", "p_adjusted"):
        table[name] = table[name] * np.nan
    found = best(table)
    groups["/best"] = found.assign(
        {name: found[name] * 0 - 1 for name in ("layer", "head")}
        | {name: found[name].copy(data=np.repeat("", found["relation"].size)) for name in ("scorer", "direction")}
        | {name: found[name] * np.nan for name in ("accuracy", "low", "high")}
    )
    return study_of(groups, documents_select=0, documents_report=37)


def more_scorers() -> Study:
    """Two kinds of weights, and every metric also without its sinks."""
    groups = groups_of()
    groups["/relations"] = relations(np.random.default_rng(4), 3, 5, ("weights", "norms"))
    table = groups["/metrics"][["entropy", "entropy_low", "entropy_high", "entropy_count"]]
    attributes = {name: table[name].attrs for name in table.data_vars}
    both = xr.concat([table, table * 0.5], dim="sinks").assign_coords(sinks=["kept", "removed"])
    for name, kept in attributes.items():
        both[name].attrs = kept
    groups["/metrics"] = both.transpose("layer", "head", "sinks")
    return study_of(groups)


def later_groups() -> Study:
    """Groups of other analyses, one of them nested, one that nobody has heard of, one too large, one of another shape."""
    groups = groups_of()
    random = np.random.default_rng(5)
    plain = ["layer", "head"]
    grid = random.uniform(0, 1, (3, 5))
    share = {"unit": "share", "limits": np.array([0.0, 1.0])}
    sites = {"task": ["upos", "deprel"], "site": ["q", "k", "context"]}
    groups["/importance"] = xr.Dataset({"gradient": (plain, grid), "ablation_mean": (plain, grid * 0.01)})
    probed = ["task", "site", *plain]
    shape = (2, 3, 3, 5)
    variables = {name: (probed, random.uniform(0, 1, shape), share) for name in ("seed_sd", "control", "accuracy")}
    variables["random"] = (["weights", *probed], random.uniform(0, 1, (2, *shape)), share)
    variables["deep"] = (["task", "site", "portion", *plain], random.uniform(0, 1, (2, 3, 11, 3, 5)), share)
    variables |= {"majority": ("task", np.array([0.21, 0.34]), share), "n": ("task", np.array([480, 470]))}
    groups["/probes"] = xr.Dataset(variables, sites)
    groups["/controls/all_random"] = xr.Dataset({"entropy": (plain, grid, {"unit": "nats"})})
    by_split = random.uniform(0, 1, (3, 3, 5))
    groups["/trees"] = xr.Dataset({"uuas": (["split", *plain], by_split, share)}, {"split": SPLITS})
    groups["/labels"] = checked_labels(3, 5)
    groups["/histograms"] = xr.Dataset({"distance": ([*plain, "bin"], random.integers(0, 90, (3, 5, 12)))})
    groups["/clusters"] = xr.Dataset(
        {"cluster": (plain, random.integers(0, 3, (3, 5))), "distance": (["a", "b"], random.uniform(0, 1, (15, 15)))}
    )
    groups["/mine"] = xr.Dataset({"oddity": (plain, grid, {"unit": "furlongs", "note": "how odd"})})
    groups["/huge"] = xr.Dataset({"all": ([*plain, "x"], np.zeros((3, 5, 40_000)))})
    groups["/other"] = xr.Dataset({"wrong": (plain, np.zeros((2, 2)))})
    return study_of(groups)


def hostile() -> Study:
    """Hostile text wherever a study holds text."""
    groups = groups_of()
    names = {f"dep:{SCRIPT}": "syntax", "dep:<b>obj</b>": "syntax", "dep:obj": "syntax"}
    table = relations(np.random.default_rng(6), 3, 5, names=names)
    table["n"][:] = 500
    groups |= {"/relations": table, "/best": best(table)}
    groups["/examples/e0"] = example(np.random.default_rng(7), 3, 5, HOSTILE)
    groups["/verification"] = verification(3, notes=(SCRIPT,))
    for name in ("id", "source", "document"):
        groups["/examples/e0"].attrs[name] = SCRIPT
    groups["/metrics"] = groups["/metrics"].assign(**{HOSTILE[1]: groups["/metrics"]["entropy"]})
    dropped = json.dumps({SCRIPT: 3})
    return study_of(
        groups, model=f"m{SCRIPT}", corpus="<img src=x onerror=alert(1)>", sentences_dropped=dropped, extra=SCRIPT
    )


def large() -> Study:
    """24 layers of 16 heads, 85 relations, 30 sentences."""
    random = np.random.default_rng(8)
    names = {f"dep:r{number}": "syntax" for number in range(85)}
    table = relations(random, 24, 16, names=names)
    groups = groups_of(24, 16) | {"/relations": table, "/best": best(table)}
    for number in range(30):
        weights = example(random, 24, 16, [f"word{place}" for place in range(6 + number % 13)])
        near_uniform = np.rint(255 / weights["pattern"].shape[-1] + random.normal(0, 1, weights["pattern"].shape))
        weights["pattern"] = (weights["pattern"].dims, near_uniform.clip(0, 255).astype(np.uint8))
        groups[f"/examples/e{number}"] = weights
    return study_of(groups)


def empty() -> Study:
    return Study(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"model": "nothing", "format": 1})}))


def without(*groups: str) -> Callable[[], Study]:
    return lambda: study_of(groups_of(), *groups)


def failed() -> Study:
    return study_of(groups_of() | {"/verification": verification(3, ok=False, notes=("layer 1 differs by 2e-2",))})


def not_compared() -> Study:
    return study_of(
        groups_of() | {"/verification": verification(3, compared=False, notes=("sdpa reports no pattern",))}
    )


def told_labels() -> xr.Dataset:
    """Labels with the sentences behind them: L0H0 on the token before, L0H1 on two relations, L0H2 broad; the rest as ever."""
    table = labels(3, 5)
    told = table["labels"].values.astype(object)

    def with_sentences(text: str, shown: dict) -> dict:
        return {**json.loads(text)["labels"][0], "examples": shown}

    sentence = {"example": "e1", "score": 0.5, "n": 4}
    before = with_sentences(told[0, 0], {kind: sentence for kind in ("best", "typical", "worst")})
    cases = [{"word": 1, "right": [0], "hit": 1, "chosen": 0}, {"word": 4, "right": [0], "hit": 0, "chosen": 1}]
    lost = [{"word": 2, "right": [0], "hit": 0, "chosen": None}]
    shown = {"best": {**sentence, "n": 2, "cases": cases}, "worst": {**sentence, "score": 0, "n": 1, "cases": lost}}
    first = with_sentences(told[0, 1], shown)
    second = {**first, "relation": "dep:nsubj", "label": "dep:nsubj (head->dep)", "direction": "head->dep"}
    second |= {"difference": 0.2, "examples": {"typical": {**sentence, "n": 2, "cases": cases}}}
    broad = {
        "family": "broad",
        "label": "broad",
        "metric": "entropy_normalised",
        "score": 0.9,
        "low": 0.89,
        "high": 0.91,
    }
    broad |= {"n": 900, "threshold": 0.8, "examples": {"best": sentence}}
    for head, found in enumerate(([before], [first, second], [broad])):
        told[0, head] = json.dumps({"labels": found, "nearest_miss": None})
    told[0, 3] = json.dumps({"labels": [], "nearest_miss": {**first, "examples": {}, "p_adjusted": 0.2, "missed": "p"}})
    return table.assign(labels=(["layer", "head"], told.astype(str)))


def extras() -> Study:
    """What a run adds on request: sentences behind labels, distributions, classes of patterns, clusters, probes, importance."""
    groups = groups_of()
    random = np.random.default_rng(9)
    plain, share = ["layer", "head"], {"unit": "share", "limits": np.array([0.0, 1.0])}
    groups["/labels"] = told_labels()
    clear = np.zeros((2, 8), dtype=np.uint8)
    clear[[0, 1], [1, 2]] = 255
    groups["/examples/e1"]["pattern"][0, 0, 2:4] = clear  # two words that look at the one before, for sure
    distance = random.dirichlet(np.ones(6), (3, 5))
    entropy = random.dirichlet(np.ones(9), (3, 5))
    bins = {"distance_bin": [0, 1, 2, 3, 6, 11], "entropy_bin": [round(0.25 * step, 2) for step in range(9)]}
    groups["/histograms"] = xr.Dataset(
        {
            "distance": ([*plain, "distance_bin"], distance, {"unit": "share of mass"}),
            "entropy": ([*plain, "entropy_bin"], entropy, {"unit": "share of rows"}),
        },
        bins,
    )
    names = ["vertical", "diagonal", "mixed", "block", "unclassified"]
    features = {
        name: (plain, random.uniform(0, 1, (3, 5)), share) for name in ("vertical", "diagonal", "vertical_even")
    }
    groups["/patterns"] = xr.Dataset({**features, "class": (plain, np.tile(np.array(names), (3, 1)))})
    away = random.uniform(0.1, 0.8, (15, 15))
    away = (away + away.T) / 2
    np.fill_diagonal(away, 0)
    clusters = {
        "distance": (["head_a", "head_b"], away),
        "cluster": (plain, random.integers(0, 3, (3, 5)), {"unit": "number of the cluster, -1: none"}),
        "embedding": ([*plain, "axis"], random.normal(0, 0.3, (3, 5, 2))),
    }
    groups["/clusters"] = xr.Dataset(clusters, attrs={"silhouette": 0.41, "linkage": "average"})
    probed = ["task", "site", *plain]
    table = {name: (probed, random.uniform(0.3, 0.9, (2, 2, 3, 5)), share) for name in ("accuracy", "control")}
    table |= {"majority": ("task", np.array([0.21, 0.34]), share), "curve_accuracy": table["accuracy"]}
    groups["/probes"] = xr.Dataset(table, {"task": ["upos", "mine"], "site": ["q", "context"]})
    quantity = "1 - cosine of the final states, mean over real tokens"
    gone = {"ablation_mean": (plain, random.uniform(0, 0.01, (3, 5)), {"unit": "1"})}
    groups["/importance"] = xr.Dataset(gone, attrs={"quantity": quantity, "n": 60})
    return study_of(groups)


def profiled() -> Study:
    """A study with probes, the profiles joined from them, and the use of two heads; L0H1 looks at syntax and carries it."""
    groups = groups_of() | {"/labels": told_labels()}
    random = np.random.default_rng(11)
    probed, share = ["task", "site", "layer", "head"], {"unit": "share", "limits": np.array([0.0, 1.0])}
    control = random.uniform(0.2, 0.3, (2, 1, 3, 5))
    selectivity = random.uniform(-0.05, 0.4, control.shape)
    selectivity[:, 0, 0, 1] = -0.04, 0.3
    numbers = {"accuracy": control + selectivity, "selectivity": selectivity}
    table = {f"{name}{end}": (probed, value + shift, share) for name, value in numbers.items() for end, shift in ENDS}
    table |= {"control": (probed, control, share), "selectivity_q": (probed, np.where(selectivity > 0.05, 0.001, 0.5))}
    table["random"] = (["weights", *probed], np.full((2, *control.shape), 0.2), share)
    table |= {name: ("task", np.array([0.21, 0.34]), share) for name in ("majority", "ceiling", "embedding_accuracy")}
    table["n"] = ("task", np.array([480.0, 470.0]))
    curve = np.stack([table["accuracy"][1] * share for share in (0.5, 0.5, 0.8, 1.0)], axis=-1)
    table |= {
        name: ([*probed, "portion"], curve * part)
        for name, part in (("curve_accuracy", 1), ("control_curve_accuracy", 0.5))
    }
    table["curve_words"] = (["task", "portion"], np.tile([60.0, 60.0, 125.0, 250.0], (2, 1)))
    table["compression"] = (probed, 1 / table["accuracy"][1])  # highest where accuracy is not
    sites = {"task": ["position", "upos"], "site": ["context"], "weights": ["all_random", "embeddings_kept"]}
    kinds = {"task_kind": ("task", ["position", "syntax"])}
    judged = {"seeds": 3, "clusters_report": 19}
    groups["/probes"] = xr.Dataset(table, {**sites, **kinds, "layer": range(3), "head": range(5)}, judged)
    groups["/profiles"] = head_profiles(groups["/labels"], groups["/probes"], groups["/metrics"])
    changes = {"change": [-0.06, 0.0], "random_change": [-0.01, 0.0], "difference": [-0.05, 0.004]}
    cases = {
        f"{name}{end}": ("case", np.array(value) + shift) for name, value in changes.items() for end, shift in ENDS
    }
    cases |= {name: ("case", np.array(value)) for name, value in (("accuracy", [0.8, 0.8]), ("states", [0.01, 0.002]))}
    where = {"layer": ("case", [0, 2]), "head": ("case", [1, 3]), "task": ("case", ["upos", "upos"])}
    groups["/use"] = xr.Dataset(cases | {"n": ("case", [527.0, 527.0])}, where, attrs={"how": "mean"})
    return study_of(groups)


ENDS = (("", 0.0), ("_low", -0.02), ("_high", 0.02))


def compared() -> Study:
    """The comparison of two studies whose numbers are drawn apart from each other."""
    return compare(study_of(groups_of()), study_of(groups_of(seed=1), model="tiny-two"))


def alike() -> Study:
    """The comparison of two studies whose numbers hardly differ: entropy by thousandths, accuracy by hundredths of a point."""
    other = groups_of()
    for name in ("entropy", "entropy_low", "entropy_high"):
        other["/metrics"][name].values[:] += np.linspace(-0.004, 0.004, 15).reshape(3, 5)
    other["/relations"]["accuracy"].values[:] += 0.0003
    return compare(study_of(groups_of()), study_of(other, model="tiny-two"))


STUDIES: dict[str, Callable[[], Study]] = {
    "whole": whole,
    "one_head": one_head,
    "causal": causal,
    "encoder_decoder": encoder_decoder,
    "undefined": undefined,
    "nothing_chosen": nothing_chosen,
    "more_scorers": more_scorers,
    "later_groups": later_groups,
    "extras": extras,
    "profiled": profiled,
    "compared": compared,
    "alike": alike,
    "hostile": hostile,
    "empty": empty,
    "failed": failed,
    "not_compared": not_compared,
    "no_verification": without("verification"),
    "no_metrics": without("metrics"),
    "no_labels": without("labels"),
    "no_relations": without("relations", "best"),
    "no_best": without("best"),
    "no_examples": without("examples"),
}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_makes_a_page(name, lang):
    page = render(STUDIES[name](), lang=lang)
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "{{" not in page.split("<script", 1)[0]


def test_a_study_of_an_older_format_opens_with_what_it_has(tmp_path):
    """Groups that came later are missing from it, and the page says which."""
    old = study_of(groups_of(), "best", "labels", "relations", "examples", format=0)
    page = render(open_study(old.save(tmp_path / "old.nc"))).split('<script type="application/json"')[0]
    for text in (
        "study format",
        "no relation could be scored",
        "this study lacks them",
        "No example sentence was stored",
    ):
        assert text in page
