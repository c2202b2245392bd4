"""The report page without a browser: what it may load, how it escapes, what it says of what is missing, its numbers and its size."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
import xarray as xr

from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.heads.compare import compare
from attnprobe.probes import profile
from attnprobe.registry import METRICS
from attnprobe.report import _payload_profiles, _tables
from attnprobe.report import page as page_module
from attnprobe.report._arena import Arena, narrowest, number, script_json, without_repeats
from attnprobe.report._methods import OPTIONAL
from attnprobe.report._overview import what_heads_do
from attnprobe.report._words import LANGUAGES, Words, short_name, table
from attnprobe.report.page import render, write_report
from tests.report.test_page_studies import (
    HOSTILE,
    RELATIONS,
    SCRIPT,
    STUDIES,
    best,
    groups_of,
    large,
    nothing_chosen,
    study_of,
    whole,
)

ASSETS = files("attnprobe.report").joinpath("assets", "page")
UNVERIFIED = ("failed", "not_compared", "no_verification", "empty")


class Reader(HTMLParser):
    """Elements with their attributes, and the text of each script, of each style and of all the rest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.inside: list[str] = []
        self.raw: list[tuple[str, dict, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.raw.append((tag, dict(attributes), ""))
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data):
        if self.inside:
            tag, attributes, before = self.raw[-1]
            self.raw[-1] = (tag, attributes, before + data)
        else:
            self.text += data

    def data(self, name: str) -> dict:
        return next(json.loads(text) for tag, found, text in self.raw if found.get("id") == name)

    def running(self) -> list[str]:
        return [text for tag, found, text in self.raw if tag == "script" and found.get("type") != "application/json"]


@pytest.fixture(scope="module")
def read():
    """The page of a study by name, read once."""
    pages: dict[tuple[str, str], Reader] = {}

    def reader(name: str, lang: str = "en") -> Reader:
        if (name, lang) not in pages:
            pages[name, lang] = Reader(render(STUDIES[name](), lang=lang))
        return pages[name, lang]

    return reader


@pytest.mark.parametrize("name", STUDIES)
def test_nothing_is_loaded(name, read):
    for tag, attributes in read(name).elements:
        for attribute in ("src", "href", "srcset", "action", "poster", "data", "background"):
            address = attributes.get(attribute) or "#"
            assert address.startswith("#") or address == "data:,", (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base", "form", "img", "video", "audio")
        assert not any(attribute.startswith("on") or attribute == "style" for attribute in attributes), (
            tag,
            attributes,
        )


def test_code_and_style_name_no_way_out():
    code = "".join(ASSETS.joinpath(f"{name}.js").read_text("utf-8") for name in page_module.SCRIPTS)
    style = "".join(ASSETS.joinpath(f"{name}.css").read_text("utf-8") for name in page_module.STYLES)
    for way in (
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "EventSource",
        "sendBeacon",
        "import(",
        "eval(",
        "new Function",
    ):
        assert way not in code
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", 'setAttribute("style"'):
        assert way not in code
    assert re.findall(r"https?://[^\"]+", code) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|@import|https?:", style)


@pytest.mark.parametrize("name", ["whole", "hostile", "empty"])
def test_policy_allows_this_script_and_this_style_only(name, read):
    reader = read(name)
    policy = next(
        found["content"] for _, found in reader.elements if found.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    (script,) = reader.running()
    (style,) = [text for tag, _, text in reader.raw if tag == "style"]
    for rule, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_hostile_text_shows_as_itself(read):
    reader = read("hostile")
    assert len(reader.raw) == 5  # one style, three blocks of data, one script
    assert not any(tag == "b" for tag, _ in reader.elements)
    assert reader.text.count(SCRIPT) >= 6  # title, heading, summary, note, relation, reason, attribute
    assert reader.data("page-data")["examples"][0]["words"] == HOSTILE


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800", "<!--", "]]>"])
def test_json_in_a_script_cannot_end_it(text):
    written = script_json({text: [text]})
    assert written.isascii()
    assert not set(written) & set("<>&")
    assert json.loads(written) == {text: [text]}


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path):
    study = whole()
    study.tree.attrs["model"] = "half \ud800 character"
    written = write_report(study, tmp_path / "page.html").read_bytes().decode("utf-8")
    assert "half &#55296; character" in written


@pytest.mark.parametrize("name", UNVERIFIED)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_unverified_is_said_loudly(name, lang, read):
    reader = read(name, lang)
    classes = [found.get("class", "") for _, found in reader.elements]
    assert "alarm" in classes
    assert "badge bad" in classes
    assert reader.text.count("UNVERIFIED") >= 3  # title, alarm, badge
    assert Words(lang)("verify.consequence") in reader.text


def test_verified_is_said_quietly_with_its_figures(read):
    reader = read("whole")
    assert "UNVERIFIED" not in reader.text
    assert "alarm" not in [found.get("class", "") for _, found in reader.elements]
    for figure in ("3.0e-6", "1.0e-5", "3,702 rows", "3 of 3 layers"):
        assert figure in reader.text


def test_notes_of_the_check_are_shown(read):
    assert "layer 1 differs by 2e-2" in read("failed").text
    assert "sdpa reports no pattern" in read("not_compared").text


@pytest.mark.parametrize("group", ["metrics", "labels", "relations", "best", "examples"])
@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_is_missing_says_why(group, lang, read):
    why = Words(lang)(f"missing.{group}")
    assert why in read(f"no_{group}", lang).text
    assert why not in read("whole", lang).text


@pytest.mark.parametrize(("more", "told"), [(0, "1 spread"), (1, "one does more than one"), (2, "2 do more than one")])
def test_heads_that_are_counted_twice_are_told(more, told):
    """The families' counts and the heads without a label would add up to more than there are."""
    syntax, broad = {"family": "syntax"}, {"family": "broad"}
    cells = [[syntax, syntax], [broad], []] + [[syntax, broad]] * more
    text = what_heads_do({"labels": [[{"labels": own} for own in cells]]}, Words("en"))
    assert text.startswith(f"Of {3 + more} heads, {1 + more} follow grammar")
    assert told in text
    assert ("more than one" in text) == (more > 0)
    assert text.endswith("; 1 earned no label.")


def test_a_model_compared_with_itself_is_told_apart():
    """By its precision or else by its weights, where both sides have one name."""
    first = {"model": "tiny", "dtype": "float32", "model_sha256": "ab" * 32}
    for second, told in (
        ({}, "A is tiny, B is tiny."),
        ({"model": "other", "dtype": "bfloat16"}, "A is tiny, B is other."),
        ({"dtype": "bfloat16"}, "A is tiny (float32), B is tiny (bfloat16)."),
        ({"model_sha256": "cd" * 32}, "A is tiny (abababab), B is tiny (cdcdcdcd)."),
    ):
        a, b = (study_of(groups_of(1, 2), **{**first, **more}) for more in ({}, second))
        assert told in Reader(render(compare(a, b))).text


def test_analyses_that_were_not_run_say_why_and_go_when_they_were(read):
    words = Words("en")
    for group in OPTIONAL:
        assert words(f"missing.{group}") in read("whole").text
    later = read("later_groups").text
    for group in ("importance", "probes", "controls", "histograms", "clusters", "trees", "causal"):
        assert words(f"missing.{group}") not in later
    for group in ("profiles", "use"):
        assert words(f"missing.{group}") in later
        assert words(f"missing.{group}") not in read("profiled").text
    assert words("missing.because.size") in later
    assert words("missing.because.shape") in later


def test_kinds_of_evidence_are_those_of_the_profiles():
    assert _payload_profiles.KINDS == profile.KINDS


def test_later_groups_reach_the_page(read):
    found = {(measure["group"], measure["name"]) for measure in read("later_groups").data("page-data")["measures"]}
    wanted = {
        ("importance", "gradient"),
        ("probes", "accuracy"),
        ("controls/all_random", "entropy"),
        ("mine", "oddity"),
    }
    assert wanted | {("histograms", "distance"), ("clusters", "cluster")} <= found
    data = read("later_groups").data("page-data")
    assert {(one["name"], one["dim"]) for one in data["context"]} == {("majority", "task"), ("n", "task")}
    uuas = next(measure for measure in data["measures"] if measure["name"] == "uuas")
    stored = STUDIES["later_groups"]()["trees"]["uuas"].sel(split="report").values.astype(np.float32)
    np.testing.assert_array_equal(unpack(read("later_groups").data("page-tables"), uuas["value"]), stored)
    assert not {("huge", "all"), ("other", "wrong"), ("clusters", "distance")} & found


@pytest.mark.parametrize("name", ["undefined", "encoder_decoder", "causal", "empty"])
def test_undefined_numbers_are_dashes_never_nan(name, read):
    reader = read(name)
    assert not re.search(r"\b(nan|NaN|inf|None)\b", reader.text)
    for _, attributes in reader.elements:
        assert (attributes.get("data-value") or "").lower() not in ("nan", "inf", "none")


def unpack(record: dict, reference: dict) -> np.ndarray:
    """What the page's own script does with a reference, in NumPy."""
    block = zlib.decompress(base64.b64decode(record["deflated"]))
    assert len(block) == record["bytes"]
    count = int(np.prod(reference["stored"]))
    flat = np.frombuffer(block, np.dtype("<" + reference["type"]), count, reference["at"])
    return np.broadcast_to(flat.reshape(reference["stored"]), reference["shape"])


def test_numbers_of_the_page_are_those_of_the_study(read):
    reader, study = read("whole"), whole()
    record = reader.data("page-tables")
    data = reader.data("page-data")
    for measure in data["measures"]:
        stored = study["metrics"][measure["name"]]
        np.testing.assert_array_equal(unpack(record, measure["value"]), stored.values.astype(np.float32))
        count = study["metrics"][measure["name"] + "_count"]
        np.testing.assert_array_equal(unpack(record, measure["count"]), count.values)
    accuracy = study["relations"]["accuracy"].transpose("split", "scorer", "relation", "direction", "layer", "head")
    np.testing.assert_array_equal(unpack(record, data["relations"]["accuracy"]), accuracy.values.astype(np.float32))
    low = study["relations"]["low"].sel(split="report").values.astype(np.float32)
    np.testing.assert_array_equal(unpack(record, data["relations"]["low"]), low)
    patterns = reader.data("page-patterns")
    for example in data["examples"]:
        stored = study["examples"][example["name"]]["pattern"].values
        np.testing.assert_array_equal(unpack(patterns, example["pattern"]), stored)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.0, 1.0, 255.0], "u1"),
        ([0, 256], "u2"),
        ([-1, 70000], "i4"),
        ([2.0**40, 1.0], "f8"),
        ([0.5, np.nan], "f4"),
        ([np.inf, 1.0], "f4"),
        ([2.0**30 + 0.5], "f8"),
        ([True, False], "u1"),
        ([], "f4"),
    ],
)
def test_arrays_take_the_narrowest_type_that_holds_them(values, kind):
    packed = narrowest(np.array(values))
    assert packed.dtype.str[1:] == kind
    np.testing.assert_array_equal(packed, np.array(values))


def test_repeats_are_stored_once():
    grid = np.broadcast_to(np.array([1.5, np.nan, 3.0]), (7, 5, 3))
    assert without_repeats(grid).shape == (1, 1, 3)
    changed = grid.copy()
    changed[6, 4, 2] = 0
    assert without_repeats(changed).shape == (7, 5, 3)
    arena = Arena()
    first, second = arena.add(grid), arena.add(np.arange(11) / 7)
    assert second["at"] % 8 == 0
    np.testing.assert_array_equal(unpack(arena.as_record(), first), grid)
    np.testing.assert_array_equal(unpack(arena.as_record(), second), (np.arange(11) / 7).astype(np.float32))


def test_numbers_for_json_are_short_and_never_nan():
    assert number(0.1 + 0.2) == 0.3
    assert number(np.float64(3)) == 3
    assert number(np.nan) is None
    assert number(-np.inf) is None


def test_sizes():
    assert len(render(whole())) < 600_000
    assert len(render(large())) < 6_000_000


def test_both_languages_have_the_same_texts_with_the_same_places():
    english, chinese = table("en"), table("zh")
    plurals = {key for key in english if key.endswith(".one")}
    assert set(english) - plurals == set(chinese) - plurals
    for key, text in chinese.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", english[key])), key


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_metric_of_the_package_has_a_name_and_a_meaning(lang):
    built_in = [name for name in METRICS.names() if METRICS[name].function.__module__.startswith("attnprobe.")]
    assert len(built_in) >= 11
    for name in built_in:
        for end in ("", ".meaning", ".chance"):
            assert f"metric.{name}{end}" in table(lang)


def test_every_text_that_the_scripts_ask_for_exists():
    known = table("en")
    for name in page_module.SCRIPTS:
        code = ASSETS.joinpath(f"{name}.js").read_text("utf-8")
        for key in re.findall(r"\bt\(\s*\"([^\"]+)\"", code):
            assert key in known, (name, key)
        for columns in re.findall(r"columnsOf\((.*?)\)[,;]", code, re.DOTALL):
            for key in re.findall(r"\[\s*\"([^\"]+)\"", columns):
                assert key in known, (name, key)


def test_the_page_is_in_its_language(read):
    assert '<html lang="zh-Hans">' in render(whole(), lang="zh")
    assert "注意力头图谱" in read("whole", "zh").text
    assert "Head atlas" not in read("whole", "zh").text


def test_methods_name_what_was_run(read):
    text = read("whole").text
    for part in ("float32 on cpu", "2,001 sentences in 37 documents", "gains 5% or more", "Jain & Wallace 2019"):
        assert part in text
    assert "Holm" not in read("no_relations").text
    assert "too long" in text
    assert "(0.6%)" in text  # unknown tokens


def test_many_unknown_tokens_are_a_caveat(read):
    study = whole()
    assert "unknown to the tokenizer" not in read("whole").text
    study.tree.attrs["unknown_tokens"] = 20_000
    assert "58.8% of the tokens are unknown to the tokenizer" in Reader(render(study)).text


def test_relations_with_few_cases_are_marked(read):
    rows = [found for tag, found in read("whole").elements if tag == "tr"]
    assert sum(found.get("class") == "few" for found in rows) == 1


@pytest.mark.parametrize(
    ("lang", "why"),
    [
        ("en", "fewer than 100 cases on the report half, or a gain under 5% on the select half"),
        ("zh", "或选择部分上的增益小于 5%"),
    ],
)
def test_relations_say_both_reasons_why_one_is_not_tested(lang, why, read):
    assert why in read("whole", lang).text


def test_random_weights_are_missing_of_attention_only(read):
    text = read("profiled").text
    assert "Attention scores (metrics, relations) of models with random weights were not run" in text
    assert "No attention of a random model beside it" in text


@pytest.mark.parametrize(("lang", "hardest"), [("en", "looks hardest at the dependent"), ("zh", "最关注依存词")])
def test_head_to_dependent_is_told_in_one_way(lang, hardest):
    """What is scored is a column: the word whose attention to the dependent is greatest."""
    known = table(lang)
    ends = ("", ".short", ".plain")
    keys = [*(f"direction.head->dep{end}" for end in ends), "atlas.note.labels", "howto.names"]
    for key in keys:
        assert hardest in known[key], key
    assert not any("from head to dependent" in text or "从支配词看依存词" in text for text in known.values())


def rows_of(page: Reader, table: str) -> dict[str, list[str]]:
    """The cells of a table by the text of the first, as the study has them."""
    found = {"best": _tables.best_table, "counts": _tables.counts_table}[table](STUDIES[page](), Words("en"))
    return {row["cells"][0]["text"]: [cell["text"] for cell in row["cells"]] for row in found["rows"]}


def test_a_relation_for_which_no_head_was_chosen_has_dashes_and_says_why(read):
    for name, cells in rows_of("nothing_chosen", "best").items():
        assert cells[2:6] == ["–", "–", "–", "–"], name
        assert cells[7:] == ["–", "–", "–", "–"], name
        assert cells[6] != "–"
    page = read("nothing_chosen")
    assert page.text.count("no case on select") == len(RELATIONS)
    assert "holds no case of any relation" in page.text
    assert "No head follows" not in page.text
    assert "L-1" not in page.text
    assert "选择部分没有例子" in read("nothing_chosen", "zh").text


def test_the_summary_tells_too_few_cases_from_too_weak_patterns():
    def read(most: float, labelled: float = np.nan) -> str:
        groups = groups_of()
        groups["/relations"]["n"][:] = most
        groups["/relations"]["p_adjusted"][:] = np.nan
        groups["/best"] = best(groups["/relations"])
        empty = json.dumps({"labels": [], "nearest_miss": None})
        groups["/labels"]["labels"][:] = empty
        rows = groups["/metrics"]["entropy"].expand_dims(split=["select", "report", "all"]) * 0 + labelled
        groups["/metrics_by_split"] = xr.Dataset({"entropy_normalised_count": rows})
        return Reader(render(study_of(groups))).text

    few = read(99.0, 12.0)
    assert "too few cases (a test needs 100 on the report half, and there were at most 99)." in few
    assert "no relation has the 100 cases on the report half that a test needs" in few
    for enough in (read(99.0, 100.0), read(100.0, 12.0)):
        assert "no pattern was strong enough to pass its test" in enough
        assert "too few cases" not in enough
    assert "No head follows any relation" in read(100.0)


def test_provenance_has_documents_and_cases_of_each_split():
    found = rows_of("nothing_chosen", "counts")
    assert [found[f"— on the {split} half"][1] for split in ("select", "report")] == ["0", "37"]
    cases = nothing_chosen()["relations"]["n"].sum("relation")
    for split in ("select", "report"):
        assert found[f"cases of relations on the {split} half"][1] == f"{float(cases.sel(split=split)):,.0f}"


def test_unknown_language_is_refused():
    with pytest.raises(InputError, match=r"expected en or zh, got 'fr'"):
        render(whole(), lang="fr")


def test_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = write_report(whole(), tmp_path / "page.html", title="My <title>")
    assert "<title>My &lt;title&gt;</title>" in path.read_text("utf-8")
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="expected a file name, got a folder"):
        write_report(whole(), tmp_path)
    with pytest.raises(EnvironmentFailure, match="Check that the folder exists"):
        write_report(whole(), tmp_path / "nowhere" / "page.html")
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(EnvironmentFailure, match="no space left"):
        write_report(whole(), path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]


def test_a_study_file_is_enough(tmp_path):
    saved = whole().save(tmp_path / "study.nc")
    assert render(whole()) == write_report(str(saved), tmp_path / "page.html").read_text("utf-8")


def test_no_torch_is_needed(tmp_path):
    saved = whole().save(tmp_path / "study.nc")
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from attnprobe.report.page import write_report\n"
        f"write_report({str(saved)!r}, {str(tmp_path / 'page.html')!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("/data/models/bert/", "bert"),
        ("./here/bert", "bert"),
        ("C:\\models\\bert", "bert"),
        ("org/bert-base", "org/bert-base"),
        ("minilm", "minilm"),
        ("bundled treebank", "bundled treebank"),
    ],
)
def test_headings_name_a_folder_by_its_last_part(name, short):
    assert short_name(name) == short
