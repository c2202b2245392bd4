"""On a device that is not the CPU: the same numbers, nothing that it refuses, and few waits; on the stand-in of `elsewhere.py`.

Where the stand-in takes the same operations as the CPU, numbers are compared bit for bit.
"""

import pickle
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnprobe import capture, load, read_conllu, run, verify
from attnprobe.data import path
from attnprobe.engines import on_cpu
from attnprobe.errors import InputError
from attnprobe.heads import controls as heads_controls
from attnprobe.heads._watch import losses_of
from attnprobe.heads.alongside import collectors_of
from attnprobe.heads.cases import Cases
from attnprobe.heads.causal import add_causal_checks
from attnprobe.heads.importance import measure_importance
from attnprobe.heads.measure import ShardMeasurer
from attnprobe.heads.metrics import default_metrics
from attnprobe.heads.minimal_pairs import pair_accuracy
from attnprobe.heads.mixing import mixing_ratios
from attnprobe.heads.relations import choose
from attnprobe.heads.running import run_through
from attnprobe.models import load as loading
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.intervene import ablating, mean_contexts, replacing_patterns, zeroing_values
from attnprobe.models.model import Model
from attnprobe.probes import controls as probes_controls
from attnprobe.probes import linear, probe, softmax
from attnprobe.probes.dependency import dependency_probe
from attnprobe.probes.structural import structural_probe
from attnprobe.registry import METRICS
from attnprobe.text.align import encode
from attnprobe.text.batching import PlanOptions, cluster_of, plan_shards
from attnprobe.text.benchmarks_blimp import MinimalPair
from tests.elsewhere import Elsewhere, device_elsewhere, has_kernel
from tests.heads.test_causal import corpus_of, labelled
from tests.tiny import build, byte_tokenizer, inputs_for

KINDS = ("cuda", "mps")
SLOW = pytest.mark.slow
SCORERS = ("weights", "norms", "rollout", "flow", "value_zeroing")
EXTRAS = ("patterns", "histograms", "clusters", "trees")
SENTENCES = corpus_of(12)
PAIRS = [
    MinimalPair(good, bad, "order", "", "", str(number))
    for number, (good, bad) in enumerate([("the cat", "cat the"), ("two dogs run", "two dog"), ("she sees", "see")])
]

Place = Callable[[nn.Module], nn.Module]
"""Puts a module where it is to run."""
Numbers = dict[str, np.ndarray]


def model_of(place: Place, family: str = "bert", *, specials: bool = True, **options: Any) -> Model:
    tokenizer = byte_tokenizer(specials=specials)
    if not specials:
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return load((place(build(family, **options)), tokenizer))


def of_study(study: Any) -> Numbers:
    return {f"{node.path}/{name}": v.values for node in study.tree.subtree for name, v in node.data_vars.items()}


def of_table(table: Any) -> Numbers:
    return {name: values.values for name, values in table.data_vars.items()}


def of_tensors(**tensors: torch.Tensor) -> Numbers:
    return {name: tensor.detach().cpu().double().numpy() for name, tensor in tensors.items()}


def measured(place: Place) -> Numbers:
    return of_study(run(model_of(place, attn="sdpa"), SENTENCES, sinks="both", extras=EXTRAS, examples=0))


def in_two_stacks(place: Place) -> Numbers:
    return of_study(run(model_of(place, "bart", specials=False), SENTENCES, extras=["clusters"], examples=2))


def half(place: Place) -> Numbers:
    model = load((place(build("bert", attn="sdpa").bfloat16()), byte_tokenizer()))
    return of_study(run(model, SENTENCES, examples=0, extras=EXTRAS))


def scored(place: Place) -> Numbers:
    return of_study(run(model_of(place), SENTENCES, metrics=["entropy"], scorers=SCORERS, examples=0))


def with_evidence(place: Place) -> Numbers:
    given = {"metrics": ["entropy"], "relations": ["dep:obj"], "examples": 0, "importance": 3, "controls": True}
    return of_study(run(model_of(place), SENTENCES, **given))


def weighed(place: Place) -> Numbers:
    model = model_of(place, "gpt2", specials=False, head="GPT2LMHeadModel")
    total, count = losses_of(model, list(encode(model.tokenizer, SENTENCES)), seed=0)
    return of_table(measure_importance(model, SENTENCES[:3])) | {"total": total, "count": count}


def causal(place: Place) -> Numbers:
    model = model_of(place, head="BertForMaskedLM")
    table = labelled((1, 2, "dep:obj", "dep->head"), (0, 1, "dep:obj", "head->dep"))
    return of_table(add_causal_checks(model, table, list(encode(model.tokenizer, SENTENCES))))


def paired(place: Place) -> Numbers:
    found = {}
    for family, head in (("bert", "BertForMaskedLM"), ("gpt2", "GPT2LMHeadModel")):
        model = model_of(place, family, specials=family == "bert", head=head)
        for how in ("zero", "mean", "uniform"):
            found |= {f"{family} {how} {k}": v for k, v in of_table(pair_accuracy(model, PAIRS, how=how)).items()}
    return found


def mixed(place: Place) -> Numbers:
    before, after = (of_table(mixing_ratios(model_of(place, name), SENTENCES[:5])) for name in ("gpt2", "bert"))
    return {f"pre-LN {k}": v for k, v in before.items()} | after


def probed(place: Place) -> Numbers:
    return of_table(probe(model_of(place), PROBED, tasks=["upos"], sites=("context",), seeds=1, penalties=(9, 3)))


def probed_in_a_run(place: Place) -> Numbers:
    given = {"metrics": ["entropy", "entropy_normalised"], "relations": ["dep:obj"], "examples": 0}
    return of_study(run(model_of(place), PROBED, probes=["upos"], **given))


def trees_probed(place: Place) -> Numbers:
    model = model_of(place)
    found = of_table(structural_probe(model, PROBED, rank=3, max_epochs=1, cluster="sentence"))
    one = dependency_probe(model, PROBED, embeddings=3, penalties=(30.0,), cluster="sentence")
    return found | {f"dependency {name}": values for name, values in of_table(one).items()}


def captured(place: Place) -> Numbers:
    found: Numbers = {}
    for family in ("bert", "mpnet", "t5"):
        taken = capture(load((place(build(family)), None)), **inputs_for(family))
        for layer, block in enumerate(taken.view(1, neurons=True).blocks):
            found |= {f"{family} {layer} {part}": getattr(block, part) for part in ("pattern", "q", "k", "scores")}
    view = capture(model_of(place, attn="sdpa"), ["the cat sat", "why"]).view(1)
    return found | {f"sdpa {layer}": block.pattern for layer, block in enumerate(view.blocks)}


def generated(place: Place) -> Numbers:
    model = model_of(place, "gpt2", specials=False, head="GPT2LMHeadModel")
    taken = capture(model, "a cat", max_new_tokens=3)
    assert [call.step for call in taken.layers] == [0, 0, 1, 1, 2, 2]  # none of a pass that generation takes back
    return of_tensors(**{f"{call.step} {call.layer}": call.context for call in taken.layers})


def changed(place: Place) -> Numbers:
    model, inputs = model_of(place), inputs_for("bert")
    means = mean_contexts(model, [inputs])
    ways = {
        **{how: ablating(model, [(0, 1), (1, 0), (1, 2)], how=how, means=means) for how in ("zero", "mean", "uniform")},
        "zeroed": zeroing_values(model, [1], [0, 3]),
        "replaced": replacing_patterns(model, {(1, 1): torch.full((11, 11), 1 / 11)}),
    }
    found = {}
    for name, way in ways.items():
        with way:
            found[name] = capture(model, **inputs).layer(1).context
    return of_tensors(**found)


CHECKS = {
    check.__name__: check
    for check in (
        *(measured, in_two_stacks, half, scored, with_evidence, weighed, causal, paired, mixed),
        *(probed, probed_in_a_run, trees_probed, captured, generated, changed),
    )
}
LONG = {"probed_in_a_run": KINDS, "probed": ("cuda",), "trees_probed": ("cuda",)}
"""What takes seconds, and on which devices it is left to the slow tests: MPS is the one that refuses more."""
PROBED = [sentence for sentence in read_conllu(path("bundled")) if len(sentence.text) < 33]


@pytest.fixture(autouse=True)
def _as_a_gpu_would(monkeypatch):
    """Probes of all heads at once, and attention by plain mathematics: what the stand-in does, asked of the CPU too."""
    monkeypatch.setattr(softmax, "one_at_a_time", lambda x: False)
    for module in (softmax, linear):
        monkeypatch.setattr(module, "aligned", lambda x: x)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with sdpa_kernel(SDPBackend.MATH):
        yield
    torch.set_num_threads(threads)


@cache
def on_the_cpu(check: str) -> Numbers:
    return CHECKS[check](lambda module: module)


def assert_same(found: Numbers, expected: Numbers) -> None:
    assert found.keys() == expected.keys()
    assert found
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize(
    ("check", "kind"),
    [pytest.param(name, kind, marks=SLOW if kind in LONG.get(name, ()) else ()) for name in CHECKS for kind in KINDS],
)
def test_the_numbers_are_those_of_the_cpu(check, kind, monkeypatch):
    expected = on_the_cpu(check)
    with device_elsewhere(kind, monkeypatch) as there:
        found = CHECKS[check](lambda module: module.to(there.device))
    assert there.waits > 0  # it did run there
    assert_same(found, expected)


FAMILIES = ("bert", "deberta", "deberta-v2", "mpnet", "xlnet", "bloom", "mpt", "t5", "gpt2", "llama", "gemma2")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_verification_finds_what_it_finds_on_the_cpu(family, dtype, kind, monkeypatch):
    module, inputs = build(family).to(dtype), inputs_for(family)
    if family == "xlnet":  # its bias knows of segments
        inputs["token_type_ids"] = (torch.arange(11) > 4).long().expand(3, -1)
    expected = verify(load((module, None)), **inputs)
    with device_elsewhere(kind, monkeypatch) as there:
        found = verify(load((module.to(there.device), None)), **inputs)
    assert (found.ok, found.notes) == (expected.ok, expected.notes)
    for name, values in vars(expected).items():
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)


def waits_of_a_pass(kind: str, monkeypatch: pytest.MonkeyPatch, *, layers: int, batches: int = 2) -> int:
    """How often the host waits while a shard runs, until its sums are asked for."""
    module = build("bert", attn="sdpa", num_hidden_layers=layers)
    tokenizer = byte_tokenizer()
    members = list(encode(tokenizer, SENTENCES[:1])) * 4 * batches
    options = PlanOptions(batch_tokens=4 * len(members[0]))
    [(shard, planned)] = plan_shards(
        members, length=len, cluster=lambda item: cluster_of(item.sentence), options=options
    )
    assert len(shard.batches) == batches
    extras = collectors_of(("patterns", "histograms", "clusters"), planned)
    cases = Cases(planned, choose(["dep"]))
    with device_elsewhere(kind, monkeypatch) as there:
        model = load((module.to(there.device), tokenizer))
        metrics = [METRICS[name] for name in default_metrics()]
        measurer = ShardMeasurer(metrics, cases, {"weights": None}, len(planned), without_sinks=True, extras=extras)
        before = there.waits
        run_through(model, shard, planned, measurer, cases)
        return there.waits - before


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_waits_per_batch_and_not_per_layer(kind, monkeypatch):
    few, many = (waits_of_a_pass(kind, monkeypatch, layers=n) for n in (2, 4))
    assert few == many
    one, three = (waits_of_a_pass(kind, monkeypatch, layers=2, batches=n) for n in (1, 3))
    assert three - few == few - one > 0  # as many for each batch


def test_a_mask_is_asked_once_whether_it_hides_later_keys(monkeypatch):
    """Where modules do not say so themselves."""
    waits = []
    for layers in (2, 4):
        module = build("bert", num_hidden_layers=layers)
        for layer in module.encoder.layer:
            layer.attention.self.is_causal = None
        with device_elsewhere("cuda", monkeypatch) as there:
            model = load((module.to(there.device), None))
            encoded = from_model_inputs(model, inputs_for("bert"))
            before = there.waits
            run_forward(model, encoded, lambda call: None)
            waits.append(there.waits - before)
    assert waits[0] == waits[1] > 0


def test_the_stand_in_refuses_what_a_device_refuses(monkeypatch):
    with device_elsewhere("mps", monkeypatch) as there:
        x = torch.arange(6.0, device="mps").view(2, 3)
        assert isinstance(x, Elsewhere)
        for wrong in (
            lambda: x + torch.ones(2, 3),
            lambda: torch.ones(2, 3)[x.long()],
            lambda: torch.stack([x, x.cpu()]),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                wrong()
        for wrong in (x.double, lambda: x.sum(dtype=torch.float64), lambda: x.to("cpu", torch.float64)):
            with pytest.raises(TypeError, match="float64"):
                wrong()
        for wrong in (x.numpy, lambda: np.asarray(x)):
            with pytest.raises(TypeError, match="numpy"):
                wrong()
        with pytest.raises(NotImplementedError, match="not implemented for the MPS"):
            torch.linalg.eigh(x @ x.T)
        assert x.cpu().double().numpy().sum() == 15
        x[:, [0, 2]] = 7.0
        assert x.tolist() == [[7.0, 1.0, 7.0], [7.0, 4.0, 7.0]]
        assert there.waits > 0


def test_the_table_of_kernels_is_read():
    assert all(has_kernel(name, kind) for name in ("add.Tensor", "softmax.int", "sum.dim_IntList") for kind in KINDS)
    assert (has_kernel("_linalg_eigh", "cuda"), has_kernel("_linalg_eigh", "mps")) == (True, False)  # by delegation
    assert (has_kernel("geqrf", "cuda"), has_kernel("geqrf", "mps")) == (True, False)


@pytest.mark.parametrize(
    ("what", "waits"),
    [
        (lambda x: x * 2 + torch.ones_like(x), 0),
        (lambda x: x[:, torch.arange(2, device=x.device)], 0),
        (lambda x: x.cpu(), 1),
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 1).any()), 1),
        (lambda x: x[x > 1], 1),
        (lambda x: x[:, torch.arange(2)], 1),
        (lambda x: torch.tensor([1.0, 2.0], device=x.device), 1),
    ],
)
def test_the_stand_in_counts_waits(what, waits, monkeypatch):
    with device_elsewhere("cuda", monkeypatch) as there:
        x = torch.ones(2, 3, device="cuda")
        before = there.waits
        what(x)
        assert there.waits - before == waits


@pytest.mark.parametrize(
    ("gpus", "mps", "chosen"), [(0, False, "cpu"), (0, True, "mps"), (1, False, "cuda"), (2, True, "cuda")]
)
def test_auto_takes_cuda_then_mps_then_the_cpu(gpus, mps, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert loading.device_of("auto") == torch.device(chosen)
    assert loading.device_of("cpu") == torch.device("cpu")
    for kind, count in (("cuda", gpus), ("mps", int(mps))):
        if count:
            assert loading.device_of(kind) == torch.device(kind)
            assert loading.device_of(f"{kind}:{count - 1}") == torch.device(kind, count - 1)
        for name in [f"{kind}:{count}", *([] if count else [kind])]:
            with pytest.raises(InputError, match=f"the device '{name}' is not available here. Use `cpu`, or `auto`"):
                loading.device_of(name)


def test_float64_weights_are_refused_on_mps(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(InputError, match="MPS has no float64.*dtype='float32'"):
        load("minilm", dtype="float64", device="mps")


@pytest.mark.parametrize("draw", [heads_controls.random_weights, probes_controls.random_weights])
def test_random_weights_leave_the_generators_of_gpus_alone(draw, monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    model = load((build("bert"), None))
    before = torch.get_rng_state()
    one, other = (draw(model, "all_random", seed=5) for _ in range(2))
    assert one.sha256 == other.sha256 != model.sha256
    assert torch.equal(torch.get_rng_state(), before)
    assert not seeded


def test_another_default_device_is_refused_by_name():
    module = build("bert")
    told = r"default device .*: expected cpu, got meta. Call `torch.set_default_device\('cpu'\)`"
    with torch.device("meta"), pytest.raises(InputError, match=told):
        capture(load((module, None)), **inputs_for("bert"))
    torch.set_default_device("meta")
    try:
        with pytest.raises(InputError, match=told):
            run(load((module, byte_tokenizer())), SENTENCES)
    finally:
        torch.set_default_device(None)


def test_a_model_is_sent_to_workers_from_the_cpu(monkeypatch):
    module = build("bert", head="BertForMaskedLM")
    inputs = inputs_for("bert")
    with torch.no_grad():
        expected = module(**inputs).logits
        with device_elsewhere("cuda", monkeypatch) as there:
            away = module.to(there.device)
            away.cls.predictions.decoder.weight = (
                away.bert.embeddings.word_embeddings.weight
            )  # which the stand-in parts
            sent = pickle.loads(pickle.dumps(on_cpu(away)))
            assert all(weight.device == there.device for weight in away.parameters())
        assert {type(weight) for weight in (*sent.parameters(), *sent.buffers())} == {nn.Parameter, torch.Tensor}
        assert torch.equal(sent(**inputs).logits, expected)
    assert sent.cls.predictions.decoder.weight is sent.bert.embeddings.word_embeddings.weight
    assert on_cpu(sent) is sent


@SLOW
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_run_of_minilm(kind, monkeypatch):
    sentences = list(islice(read_conllu(path("bundled")), 24))
    options = {"extras": ["examples", *EXTRAS], "importance": 4, "controls": True, "causal": True, "examples": 2}
    expected = of_study(run(load("minilm", attn="sdpa"), sentences, **options))
    with device_elsewhere(kind, monkeypatch) as there:
        found = of_study(run(load("minilm", attn="sdpa", device=str(there.device)), sentences, **options))
    assert_same(found, expected)
