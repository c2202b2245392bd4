"""A whole run: what a study holds, that nothing depends on batches or order, and the independent reference."""

import hashlib
import io
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnprobe import capture, load, open_study, read_conllu, run
from attnprobe.errors import EnvironmentFailure, InputError, VerificationError
from attnprobe.heads.specialise import label_table
from attnprobe.records import STUDY_FORMAT, Sentence
from attnprobe.text.batching import cluster_of, split_of_sentence
from attnprobe.text.corpus import read_corpus

SENTENCES = [
    Sentence(
        f"s{d}-{i}",
        ("The", "old", "dogs", "chased", "a", "cat", str(7 * d + i), "."),
        document=f"d{d}",
        heads=(3, 3, 4, 0, 6, 4, 6, 4),
        deprels=("det", "amod", "nsubj", "root", "det", "obj", "nummod", "punct"),
    )
    for d in range(11)
    for i in range(3)
] + [Sentence("one", ("Yes",), document="last", heads=(0,), deprels=("root",))]


@pytest.fixture(scope="module")
def study(minilm):
    return run(minilm, SENTENCES, examples=2)


def test_a_study_has_the_groups_and_names_others_rely_on(study):
    assert {"verification", "metrics", "metrics_by_split", "relations", "best", "labels", "examples"} <= set(
        study.groups
    )
    assert study["metrics"]["entropy"].dims == ("layer", "head")
    assert study["metrics"]["offset_mass"].dims == ("layer", "head", "offset")
    assert study["metrics"]["special_mass"].dims == ("layer", "head", "target")
    relations = study["relations"]
    assert relations["hits"].dims == ("split", "scorer", "relation", "direction", "layer", "head")
    assert relations["n"].dims == ("split", "relation")
    assert relations["offset_hits"].dims == ("split", "relation", "offset")
    assert relations["baseline"].dims == relations["baseline_offset"].dims == ("split", "relation")
    assert list(relations["split"].values) == ["select", "report", "all"]
    assert list(relations["direction"].values) == ["dep->head", "head->dep"]
    for name in ("accuracy", "low", "high", "difference", "difference_low", "difference_high", "p_adjusted"):
        assert name in relations
    assert study["metrics"]["entropy"].attrs["unit"] == "nats"


def test_provenance_says_what_was_run(study):
    told = study.attributes
    assert told["format"] == STUDY_FORMAT
    assert told["model_sha256"].startswith("53aa5117")
    assert told["sentences_kept"] == len(SENTENCES)
    plan = json.loads(told["plan"])
    assert len(plan["sha256"]) == 64
    assert plan["metrics"]
    assert json.loads(told["sentences_dropped"]) == {}
    assert study.verified


def test_counts_are_those_of_the_corpus(study):
    n = study["relations"]["n"].sel(split="all")
    assert int(n.sel(relation="dep:det")) == 2 * 33
    assert int(n.sel(relation="dep:ALL")) == 7 * 33
    assert int(n.sel(relation="udep:ALL-punct")) == 6 * 33
    assert "dep:root" not in study["relations"]["relation"].values
    # the baseline of an amod right before its noun
    assert float(study["relations"]["baseline"].sel(split="all", relation="dep:amod")) == 1.0


def test_a_saved_study_opens_as_it_was(study, tmp_path):
    path = study.save(tmp_path / "s.nc")
    again = open_study(path)
    assert again.attributes == study.attributes
    for group in ("metrics", "relations", "labels", "best", "verification"):
        for name, values in study[group].data_vars.items():
            np.testing.assert_array_equal(again[group][name].values, values.values)
    assert [p.name for p in tmp_path.iterdir()] == ["s.nc"]


def test_order_of_sentences_and_size_of_batches_change_only_rounding(minilm, study):
    documents = [SENTENCES[i : i + 3] for i in range(0, 33, 3)][::-1] + [SENTENCES[33:]]
    other = run(minilm, [sentence for document in documents for sentence in document], batch_tokens=31, examples=0)
    for name in ("entropy", "distance", "offset_mass", "special_mass"):
        np.testing.assert_allclose(other["metrics"][name], study["metrics"][name], atol=2e-5)
        np.testing.assert_allclose(other["metrics"][f"{name}_low"], study["metrics"][f"{name}_low"], atol=1e-4)
    wanted = list(study["relations"]["relation"].values)
    np.testing.assert_allclose(
        other["relations"]["hits"].sel(relation=wanted), study["relations"]["hits"], atol=1
    )  # a near-tie may fall the other way
    np.testing.assert_array_equal(other["relations"]["n"].sel(relation=wanted), study["relations"]["n"])


def test_the_same_run_twice_gives_the_same_bits(minilm, study):
    again = run(minilm, SENTENCES, examples=2)
    for group in ("metrics", "relations", "best", "labels"):
        for name, values in study[group].data_vars.items():
            np.testing.assert_array_equal(again[group][name].values, values.values)
    plans = [json.loads(s.attributes["plan"])["sha256"] for s in (study, again)]
    assert plans[0] == plans[1]


def test_metrics_and_relations_can_be_chosen(minilm):
    small = run(minilm, SENTENCES[:9], metrics=["entropy"], relations=["dep:obj"], examples=0)
    assert set(small["metrics"].data_vars) == {"entropy", "entropy_low", "entropy_high", "entropy_count", "count"}
    assert list(small["relations"]["relation"].values) == ["dep:obj"]


def test_without_sinks_there_are_two_views(minilm):
    both = run(minilm, SENTENCES[:9], metrics=["entropy", "special_mass"], relations=[], sinks="both", examples=0)
    assert both["metrics"]["entropy"].dims == ("layer", "head", "sinks")
    assert float(both["metrics"]["special_mass"].sel(sinks="removed", target="cls").max()) == 0.0
    kept = both["metrics"]["entropy"].sel(sinks="kept")
    plain = run(minilm, SENTENCES[:9], metrics=["entropy"], relations=[], examples=0)["metrics"]["entropy"]
    np.testing.assert_array_equal(kept, plain)


def test_a_corpus_without_trees_gives_no_relations(minilm):
    plain = [Sentence(str(i), ("Rain", "fell", str(i)), document="d" if i < 2 else "e") for i in range(5)]
    study = run(minilm, plain, examples=0)
    assert "relations" not in study
    assert study["metrics"]["entropy"].notnull().all()


def test_one_word_sentences_have_no_cases_and_are_counted(minilm):
    study = run(minilm, [SENTENCES[-1], replace(SENTENCES[-1], id="two", words=("No",))], examples=0)
    assert "relations" not in study
    assert study.attributes["sentences_kept"] == 2


def test_unknown_words_alone_are_run_and_their_share_told(minilm):
    study = run(minilm, [Sentence("u", ("💩", "💩💩"), heads=(0, 1), deprels=("root", "obj"))], examples=0)
    assert study.attributes["unknown_tokens"] == 2
    assert int(study["relations"]["n"].sel(split="all", relation="dep:obj")) == 1


def test_too_long_sentences_are_left_out_and_counted(minilm):
    long = Sentence("long", ("word",) * 600, heads=(0, *[1] * 599), deprels=("root", *["obj"] * 599))
    study = run(minilm, [*SENTENCES[:6], long], examples=0)
    assert json.loads(study.attributes["sentences_dropped"]) == {"too long": 1}
    with pytest.raises(InputError, match="no sentence is left.*1 too long"):
        run(minilm, [long])


def test_repeated_sentences_are_warned_about(minilm):
    with pytest.warns(UserWarning, match="repeat an earlier one"):
        run(minilm, SENTENCES[:5] + [replace(SENTENCES[0], id="again")], examples=0)


def test_a_document_given_twice_is_warned_about(minilm):
    corpus = [Sentence(f"{i}", (f"a{i}", "b"), document=f"d{i // 3}") for i in range(60)]
    again = [replace(sentence, id=f"{sentence.id}x", document="d0x") for sentence in corpus[:3]]
    with pytest.warns(
        UserWarning, match="1 of 21 documents are word for word an earlier one: intervals are too narrow"
    ):
        study = run(minilm, [*corpus, *again], metrics=["entropy"], examples=0)
    assert [study.attributes[f"repeated_{what}"] for what in ("documents", "sentences")] == [1, 3]
    alike = [replace(corpus[0], id=name, document=name) for name in "op"]  # one sentence alone may well be said twice
    assert run(minilm, [*corpus, *alike], metrics=["entropy"], examples=0).attributes["repeated_documents"] == 0


@pytest.mark.parametrize(("empty", "lost"), [("select", "nothing can be chosen"), ("report", "nothing .* judged")])
def test_a_split_without_documents_is_warned_about_and_yields_no_choice(minilm, empty, lost):
    other = {"select": "report", "report": "select"}[empty]
    there = [sentence for sentence in SENTENCES if split_of_sentence(sentence) == other]
    n = len({sentence.document for sentence in there})
    counts = {empty: 0, other: n}
    told = f"no document falls into the split {empty} .documents: {counts['select']} in select, {counts['report']} in report"
    with pytest.warns(UserWarning, match=f"{told}.*{lost}.*more documents, or .*cluster='sentence'") as caught:
        study = run(minilm, there, relations=["dep"], examples=0)
    assert caught[0].filename == __file__
    assert {split: study.attributes[f"documents_{split}"] for split in counts} == counts
    assert (study["best"]["layer"] >= 0).all() == (empty == "report")
    assert study["best"]["difference"].isnull().all()
    texts = study["labels"]["labels"].values.ravel()
    found = [item for read in map(json.loads, texts) for item in [*read["labels"], read["nearest_miss"] or {}]]
    assert not any("offset" in item or "relation" in item for item in found)


def test_no_offset_is_taken_for_the_best_where_select_has_no_rows(study):
    table = study.tree["metrics_by_split"].to_dataset().copy(deep=True)
    for name, value in (("offset_mass", np.nan), ("offset_argmax", np.nan)):
        table[name].loc[{"split": "select"}] = value
        table[f"{name}_low"].loc[{"split": "report"}] = 0.99
        table[f"{name}_count"].loc[{"split": "report"}] = 1000
    for text in label_table(table, None, margin=0.05)["labels"].values.ravel():
        assert "offset" not in str(text)


def test_documents_are_counted_by_split_and_two_filled_ones_are_no_warning(minilm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = run(minilm, SENTENCES, metrics=["entropy"], relations=[], examples=0)
        by_sentence = run(minilm, SENTENCES, metrics=["entropy"], relations=[], examples=0, cluster="sentence")
    for found, by, n in ((study, "document", 12), (by_sentence, "sentence", 34)):
        clusters = {cluster_of(sentence, by): split_of_sentence(sentence, by) for sentence in SENTENCES}
        assert found.attributes["documents"] == len(clusters) == n
        for split in ("select", "report"):
            assert found.attributes[f"documents_{split}"] == list(clusters.values()).count(split)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["entrpy"]}, "unknown head metric 'entrpy'; near names: entropy"),
        ({"relations": ["dep:onj"]}, "unknown relation 'dep:onj'; near names: .*dep:obj"),
        ({"sinks": "gone"}, "expected kept or both, got 'gone'"),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(minilm, options, message):
    with pytest.raises(InputError, match=message):
        run(minilm, SENTENCES, **options)


def test_a_capture_that_does_not_match_stops_the_run(minilm, monkeypatch):
    from attnprobe.models import verify as verification

    def wrong(call, **options):
        pattern, context = honest(call, **options)
        return pattern.flip(1), context.flip(1)  # heads in the wrong order

    honest = verification.recompute
    monkeypatch.setattr(verification, "recompute", wrong)
    with pytest.raises(VerificationError, match="layer 0"):
        run(minilm, SENTENCES[:6])
    study = run(minilm, SENTENCES[:6], unverified=True, examples=0)
    assert not study.verified


def test_a_study_that_cannot_be_written_leaves_nothing(study, tmp_path):
    with pytest.raises(EnvironmentFailure, match="cannot write the study"):
        study.save(tmp_path / "no" / "s.nc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not netcdf", b"\x89HDF\r\n\x1a\n broken"])
def test_files_that_are_no_study_are_refused(tmp_path, content):
    path = tmp_path / "x.nc"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot open the study"):
        open_study(path)
    with pytest.raises(InputError, match="expected a file"):
        open_study(tmp_path / "gone.nc")


def test_a_newer_format_says_to_update(study, tmp_path):
    tree = study.tree.copy()
    tree.attrs["format"] = STUDY_FORMAT + 1
    tree.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="Update attnprobe"):
        open_study(tmp_path / "new.nc")


@pytest.mark.parametrize("number", ["two", "", "-1"])
def test_a_format_that_is_no_number_is_no_study(study, tmp_path, number):
    tree = study.tree.copy()
    tree.attrs["format"] = number
    tree.to_netcdf(tmp_path / "odd.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="cannot read this study.*Is it a study written by"):
        open_study(tmp_path / "odd.nc")


def test_standard_input_too_long_to_keep_is_run(minilm, monkeypatch):
    """It is read twice, once for the plan and once to measure; and by no more than `max_sentences`."""
    text = "".join(f"The old dogs chased {i} cats .\n" for i in range(23)).encode()
    monkeypatch.setattr("attnprobe.planning.SMALL", 5)
    found = []
    for limit in (None, 23, 11):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        found.append(run(minilm, read_corpus("-"), metrics=["entropy"], examples=0, max_sentences=limit))
    assert [study.attributes["sentences_kept"] for study in found] == [23, 23, 11]
    assert found[0].attributes["corpus_sha256"] == hashlib.sha256(text).hexdigest()
    np.testing.assert_array_equal(found[0]["metrics"]["entropy"], found[1]["metrics"]["entropy"])
    assert not np.array_equal(found[0]["metrics"]["entropy"], found[2]["metrics"]["entropy"])


def exact_entropy(model, sentence):
    """Mean entropy of each head's rows in float64, from the q and k that the model computed in its own precision."""
    found = []
    for call in capture(model, sentence).layers:
        scores = call.q.double() @ call.k.double().transpose(-1, -2) * call.scale
        found.append(
            torch.special.entr(scores.softmax(-1)).sum(-1)[0, :, 1:-1].mean(-1).numpy()
        )  # [CLS], [SEP] left out
    return np.array(found)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-4), ("float16", 1e-4)])
def test_a_model_in_half_precision_is_measured_in_float32(dtype, tolerance):
    """Statistics in the model's precision would be off by a hundredth (bfloat16) or a thousandth."""
    model = load("minilm", attn="sdpa", dtype=dtype)
    study = run(model, SENTENCES[:1], metrics=["entropy"], relations=[], examples=0)
    exact = exact_entropy(model, SENTENCES[0])
    np.testing.assert_allclose(study["metrics"]["entropy"], exact, atol=tolerance)
    assert study.attributes["dtype"] == dtype
    assert study.verified
    full = exact_entropy(load("minilm", attn="sdpa"), SENTENCES[0])
    assert (np.abs(full - exact).max() > 3e-4) == (dtype != "float32")  # it did run in that precision


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_gives_the_numbers_of_the_cpu(minilm_sdpa, dtype):
    model = load("minilm", attn="sdpa", dtype=dtype, device="auto")
    assert model.device.type in ("cuda", "mps")
    there = run(model, SENTENCES, examples=0)
    here = run(minilm_sdpa, SENTENCES, examples=0)
    tolerance = 1e-4 if dtype == "float32" else 0.1
    np.testing.assert_allclose(there["metrics"]["entropy"], here["metrics"]["entropy"], atol=tolerance)
    np.testing.assert_array_equal(there["relations"]["n"], here["relations"]["n"])
    assert there.verified


@pytest.mark.shared
def test_ewt_dev_gives_the_independent_reference(minilm_sdpa, shared_data):
    """2,001 sentences: every accuracy and baseline of the reference to 0.0001, entropy, mass and the best heads."""
    study = run(minilm_sdpa, read_conllu(shared_data / "ud/en_ewt/en_ewt-ud-dev.conllu"), examples=0)
    reference = json.loads((shared_data / "reference/reference_minilm_ewt_dev.json").read_text())
    assert study.attributes["sentences_kept"] == reference["sentences"]
    relations = study["relations"].sel(split="all", scorer="weights")
    names = {"ALL": "dep:ALL", "ALL_nopunct": "udep:ALL-punct"}
    compared = 0
    for name, facts in reference["relations"].items():
        ours = names.get(name) or (f"udep:{name[2:]}" if name.startswith("u:") else f"dep:{name}")
        if facts["n"] < 100:
            continue
        one = relations.sel(relation=ours)
        assert int(one["n"]) == facts["n"]
        assert float(one["baseline"]) == pytest.approx(facts["baseline_acc"], abs=1e-4)
        assert int(one["baseline_offset"]) == facts["baseline_offset"]
        for direction, table in reference["accuracy"][name].items():
            np.testing.assert_allclose(one["accuracy"].sel(direction=direction), table, atol=1e-4)
            compared += np.size(table)
        if facts["acc"] - facts["second_best"] > 0.005:
            best = one["accuracy"].sel(direction=facts["direction"]).values
            assert np.unravel_index(best.argmax(), best.shape) == (facts["layer0"], facts["head0"])
    assert compared >= 7920
    metrics = study["metrics"]
    np.testing.assert_allclose(metrics["entropy"], reference["entropy_mean"], atol=1e-4)
    for offset, name in ((-1, "prev"), (1, "next")):
        np.testing.assert_allclose(metrics["offset_mass"].sel(offset=offset), reference["position"][name], atol=1e-4)
    for target in ("self", "cls", "sep"):
        key = target if target == "self" else target.upper()
        np.testing.assert_allclose(metrics["special_mass"].sel(target=target), reference["position"][key], atol=1e-4)
        np.testing.assert_allclose(
            metrics["special_argmax"].sel(target=target), reference["argmax_share"][key], atol=1e-4
        )
    assert float(metrics["offset_mass"].sel(layer=0, head=2, offset=-1)) == pytest.approx(0.9996, abs=1e-4)
