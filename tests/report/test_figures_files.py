"""Figure files: fonts inside them, alternative text in their metadata, the same bytes every time, and nothing global touched."""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.report import figures
from tests.report.test_figures import of_fonts, rich, toy_view
from tests.report.test_page_studies import STUDIES, whole


@pytest.fixture(scope="module")
def drawn():
    return figures.atlas(rich(), width="single")


def fonts_of(pdf: bytes) -> dict[str, list[str]]:
    """Kinds of fonts in a PDF, the files embedded, and the descriptors without a file."""
    objects = re.findall(rb"\d+ 0 obj(.*?)endobj", pdf, re.DOTALL)
    heads = [part.split(b"stream")[0].decode("latin-1") for part in objects]
    fonts = [head for head in heads if re.search(r"/Type ?/Font\b", head)]
    descriptors = [head for head in heads if "/FontDescriptor" in head and "/FontName" in head]
    return {
        "kinds": [kind for head in fonts for kind in re.findall(r"/Subtype ?/(\w+)", head)],
        "embedded": [head for head in descriptors if "/FontFile" in head],
        "named_only": [head for head in descriptors if "/FontFile" not in head],
    }


def text_chunks(png: Path) -> dict[str, str]:
    with Image.open(png) as image:
        return dict(image.text)


def test_fonts_are_embedded_whole_letters(drawn, tmp_path):
    drawn.savefig(tmp_path / "a.pdf")
    fonts = fonts_of((tmp_path / "a.pdf").read_bytes())
    assert fonts["embedded"]
    assert not fonts["named_only"]
    assert "Type3" not in fonts["kinds"]
    assert set(fonts["kinds"]) <= {"Type0", "CIDFontType2", "TrueType"}


def test_the_search_for_fonts_sees_others(tmp_path):
    """The check above can fail: matplotlib's own default is Type 3, and a core font is named without being embedded."""
    plain = matplotlib.figure.Figure()
    plain.text(0.1, 0.5, "words")
    for setting in ({"pdf.fonttype": 3}, {"pdf.use14corefonts": True, "font.family": "Helvetica"}):
        with matplotlib.rc_context(setting):
            plain.savefig(tmp_path / "plain.pdf")
        fonts = fonts_of((tmp_path / "plain.pdf").read_bytes())
        assert "Type3" in fonts["kinds"] or "Type1" in fonts["kinds"]


def test_words_of_any_script_are_embedded_too(tmp_path, recwarn):
    figures.heat_map(toy_view(["北京大学", "学生", "العربية", "naïve", "Ωμέγα"]), 0, 0).savefig(tmp_path / "a.pdf")
    fonts = fonts_of((tmp_path / "a.pdf").read_bytes())
    assert len(fonts["embedded"]) >= 2
    assert not fonts["named_only"]
    assert "Type3" not in fonts["kinds"]
    assert all(of_fonts(warning) for warning in recwarn)


def test_svg_needs_no_font_and_no_network(drawn, tmp_path):
    drawn.savefig(tmp_path / "a.svg")
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<text" not in svg
    assert "<image" not in svg
    assert not re.search(r'href="(?!#)', svg)
    assert f"<title>{drawn.name}</title>" in svg
    assert drawn.alt.split(".")[0] in svg


def test_alternative_text_is_in_every_file(drawn, tmp_path):
    drawn.savefig(tmp_path / "a.png", dpi=60)
    assert text_chunks(tmp_path / "a.png")["Description"] == drawn.alt
    drawn.savefig(tmp_path / "a.pdf")
    assert b"(Grid of 3 layers by 5 heads coloured by" in (tmp_path / "a.pdf").read_bytes()


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_equal_studies_give_equal_files(suffix, tmp_path):
    paths = [tmp_path / f"{number}.{suffix}" for number in (1, 2)]
    for path in paths:
        figures.relation_bars(rich()).savefig(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


DARK = {
    "figure.facecolor": "black",
    "axes.facecolor": "black",
    "text.color": "white",
    "font.size": 20,
    "font.family": "monospace",
    "axes.grid": True,
    "pdf.fonttype": 3,
    "svg.fonttype": "none",
    "lines.linewidth": 9,
    "savefig.transparent": True,
}


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_the_user_s_style_neither_leaks_in_nor_is_changed(suffix, tmp_path):
    draw = figures.entropy_by_layer
    draw(rich()).savefig(tmp_path / f"plain.{suffix}")
    with matplotlib.rc_context(DARK):
        before = dict(matplotlib.rcParams)
        dark = draw(rich())
        dark.savefig(tmp_path / f"dark.{suffix}")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / f"plain.{suffix}").read_bytes() == (tmp_path / f"dark.{suffix}").read_bytes()


def test_drawing_needs_neither_torch_nor_pyplot(tmp_path):
    path = rich().save(tmp_path / "study.nc")
    code = f"""
import sys
from attnprobe import figures, open_study
study = open_study({str(path)!r})
figures.atlas(study).savefig({str(tmp_path / "a.png")!r})
figures.relation_bars(study)._repr_png_()
print([name for name in ("torch", "transformers", "matplotlib.pyplot", "attnprobe.study", "attnprobe.heads") if name in sys.modules])
import matplotlib.pyplot
print("matplotlib.pyplot" in sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.stdout.split() == ["[]", "True"], run.stderr


def test_a_notebook_shows_a_picture(drawn):
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_a_card_has_round_clear_corners_and_the_same_content(tmp_path):
    figures.atlas(rich(), width="single").savefig(tmp_path / "flat.png", dpi=100)
    figures.atlas(rich(), width="single").as_card().savefig(tmp_path / "card.png", dpi=100)
    with Image.open(tmp_path / "card.png") as image:
        card = np.asarray(image.convert("RGBA"))
    with Image.open(tmp_path / "flat.png") as image:
        flat = np.asarray(image.convert("RGB"))
    margin = ((np.array(card.shape) - flat.shape)[:2] / 2).round().astype(int)
    assert (margin >= 12).all()
    assert (card[[0, 0, -1, -1], [0, -1, 0, -1], 3] == 0).all(), "corners are clear"
    middle = card[len(card) // 2]
    assert (middle[[8, -8]] == 255).all(), "the card is white on both sides"
    down, right = margin
    inside = card[down : down + flat.shape[0], right : right + flat.shape[1], :3]
    assert (inside == flat).all(axis=2).mean() > 0.98, "the figure itself is unchanged"


def test_save_all_writes_four_files_a_figure_and_says_what_is_missing(tmp_path):
    folder = tmp_path / "deep" / "figures"
    study = whole()
    written = figures.save_all(study, folder, width="single", heads=[(1, 2)])
    assert all(path.is_file() for path in written)
    assert {path.name for path in written} == {path.name for path in folder.iterdir()}
    names = {path.stem for path in written if path.suffix == ".svg"}
    assert {"atlas-entropy", "atlas-labels", "entropy-by-layer", "distance-histograms", "relation-bars"} <= names
    assert {"head-L1H2", "pattern-L1H2"} <= names
    for name in names:
        assert {path.suffix for path in written if path.stem == name} == {".svg", ".pdf", ".csv", ".txt"}
        assert "Alt text: " in (folder / f"{name}.txt").read_text(encoding="utf-8")
    told = (folder / "figures.txt").read_text(encoding="utf-8")
    assert "cluster map: cannot draw the cluster map: expected a study with /clusters" in told
    assert "attnprobe probe" in told
    assert all(name in told for name in names)
    read = pd.read_csv(folder / "atlas-entropy.csv")
    assert read["value"].to_numpy() == pytest.approx(study["metrics"]["entropy"].values.ravel(), rel=1e-12)


def test_heads_drawn_by_default_are_those_that_beat_a_baseline():
    study = rich()
    study.tree["best"]["p_adjusted"].values[1] = 0.5
    best = study["best"].to_dataframe()
    expected = {f"L{row.layer:.0f}H{row.head:.0f}" for row in best[best["p_adjusted"] < 0.05].itertuples()}
    assert expected
    assert {f"L{layer}H{head}" for layer, head in figures._heads(study)} == expected
    assert figures._heads(STUDIES["no_best"]()) == []


@pytest.mark.parametrize("name", ["empty", "hostile"])
def test_save_all_survives_every_study(name, tmp_path, recwarn):
    written = figures.save_all(STUDIES[name](), tmp_path, width="single", heads=[(0, 0)])
    assert {path.parent for path in written} == {tmp_path}
    assert all(of_fonts(warning) for warning in recwarn)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match="taken: expected a folder, got a file"):
        figures.save_all(whole(), tmp_path / "taken")
    with pytest.raises(EnvironmentFailure, match="taken/deeper"):
        figures.save_all(whole(), tmp_path / "taken" / "deeper")
    with pytest.raises(EnvironmentFailure, match=r"cannot write the figure at .*nowhere"):
        figures.relation_bars(rich()).savefig(tmp_path / "nowhere" / "a.pdf")
    with pytest.raises(InputError, match="single or double"):
        figures.save_all(whole(), tmp_path / "new", width="wide")
    assert not (tmp_path / "new").exists()
