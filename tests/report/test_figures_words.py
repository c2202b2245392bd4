"""Words in any script: drawn in a font that has them, or by code with a warning; never an empty box."""

import warnings

import numpy as np
import pytest
from matplotlib import ft2font
from matplotlib.font_manager import fontManager

from attnprobe.report import _figure_fonts, figures
from attnprobe.report._figure_fonts import BUNDLED, _glyphs, fonts_for
from tests.report.test_figures import check_texts, of_fonts, shown, toy_view
from tests.report.test_page_studies import best, groups_of, relations, study_of

WORDS = {
    "Chinese": ["北京大学", "的", "学生"],
    "Japanese": ["東京", "の", "カタカナ"],
    "Korean": ["서울", "대학교"],
    "Arabic": ["العربية", "كلمة"],
    "Hebrew": ["עברית", "שלום"],
    "Hindi": ["हिन्दी", "क्षत्रिय"],
    "Tamil": ["தமிழ்"],
    "Thai": ["ภาษาไทย", "คำ"],
    "Greek": ["Ωμέγα", "λόγος"],
    "Vietnamese": ["tiếng", "Việt"],
    "combining": ["q̀̂", "e\u0301"],
    "emoji": ["👩‍👩‍👧", "💩", "😀"],
    "controls": ["a\nb", "a\u2028b", "tab\t", "\x00", ""],
    "mathematics": ["$x^2$", "$5", "\\alpha", "{}", "%s"],
    "ancient": ["𐎠𐎡", "𒀀"],
    "unassigned": ["\U000e0fff", "\uf8ff"],
}


@pytest.fixture(autouse=True)
def _forget_fonts():
    """Fonts found are remembered; what a test hides must not be."""
    yield
    for remembered in (_figure_fonts._chain, _figure_fonts._installed, _figure_fonts._others, _figure_fonts._glyphs):
        remembered.cache_clear()


def only_bundled(monkeypatch):
    """A machine with no fonts but those that come with matplotlib."""
    bundled = [entry for entry in fontManager.ttflist if "mpl-data" in entry.fname]
    assert bundled
    monkeypatch.setattr(fontManager, "ttflist", bundled)
    for remembered in (_figure_fonts._chain, _figure_fonts._installed, _figure_fonts._others, _figure_fonts._glyphs):
        remembered.cache_clear()


def boxes(figure) -> set[str]:
    """Characters drawn that no font of the figure has."""
    have = frozenset().union(*map(_glyphs, figure.fonts.families))
    letters = {letter for text in shown(figure) for letter in text.get_text()}
    return {
        letter
        for letter in letters
        if letter not in have and letter not in "\n\u200d" and not 0xFE00 <= ord(letter) <= 0xFE0F
    }


@pytest.mark.parametrize("name", WORDS)
def test_no_word_is_drawn_as_a_box(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drawn = figures.heat_map(toy_view([*WORDS[name], "word"]), 0, 0)
        drawn.draw_without_rendering()
    assert boxes(drawn) == set()
    assert all(of_fonts(warning) for warning in caught), "matplotlib itself finds nothing missing"
    assert bool(drawn.fonts.missing) == any("no installed font" in str(warning.message) for warning in caught)
    assert list(drawn.table["key_text"][: len(WORDS[name])]) == WORDS[name], "the table keeps the words as they are"
    check_texts(drawn)


@pytest.mark.parametrize("name", ["Chinese", "Korean", "Thai", "emoji"])
def test_where_no_font_has_them_a_warning_says_so_and_codes_are_drawn(name, monkeypatch):
    only_bundled(monkeypatch)
    with pytest.warns(UserWarning, match=r"no installed font has a glyph for .*U\+.*Install fonts") as caught:
        drawn = figures.heat_map(toy_view([*WORDS[name], "word"]), 0, 0)
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert drawn.fonts.families == (BUNDLED,)
    assert boxes(drawn) == set()
    assert any(f"[U+{ord(WORDS[name][0][0]):04X}]" in text.get_text() for text in shown(drawn))


def test_a_box_would_be_found(monkeypatch):
    """The search for boxes can fail: let the missing characters through."""
    only_bundled(monkeypatch)
    with pytest.warns(UserWarning, match="no installed font"):
        drawn = figures.heat_map(toy_view(WORDS["Chinese"]), 0, 0)
    drawn.text(0.5, 0.5, "北")
    with pytest.warns(UserWarning, match="missing from font"):
        assert boxes(drawn) == {"北"}


@pytest.mark.filterwarnings("ignore:no installed font")
@pytest.mark.parametrize("letter", ["北", "カ", "서", "ไ", "𐎠", "\uf8ff"])
def test_a_font_is_found_where_one_is_installed(letter):
    installed = any(letter in _glyphs(family) for family in (BUNDLED, *_figure_fonts._others()))
    assert (letter in fonts_for([letter]).missing) == (not installed)


@pytest.mark.filterwarnings("ignore:no installed font")
def test_fonts_that_claim_everything_are_not_taken():
    families = fonts_for(["word", "北京", "ไทย"]).families
    assert not any(family.startswith(_figure_fonts.UNFIT) for family in families)


def test_dollars_are_dollars():
    drawn = figures.heat_map(toy_view(["$5", "or", "$6"]), 0, 0)
    assert {"$5", "$6"} <= {text.get_text() for text in shown(drawn)}
    assert not any(text.get_parse_math() for text in shown(drawn))


@pytest.mark.parametrize(
    ("word", "drawn"), [("a\nb", "a↵b"), ("\t", "⇥"), ("", "∅"), ("a\u2028b", "a[U+2028]b"), ("ok", "ok")]
)
def test_controls_are_shown_by_sign(word, drawn):
    assert fonts_for([word]).shown(word) == drawn


def test_scripts_that_need_shaping_ask_for_a_newer_matplotlib(monkeypatch):
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    with pytest.warns(UserWarning, match="unjoined.*matplotlib 3.11"):
        fonts_for(["كلمة"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fonts_for(["word", "Ωμέγα"])


def test_relation_names_in_any_script_are_drawn(monkeypatch):
    names = {"dep:主語": "syntax", "dep:目的語": "syntax", "dep:obj": "syntax"}
    table = relations(np.random.default_rng(0), 3, 5, names=names)
    table["n"][:] = 500
    study = study_of(groups_of() | {"/relations": table, "/best": best(table)})
    only_bundled(monkeypatch)
    for draw in (
        figures.relation_bars,
        lambda s: figures.head_profile(s, 0, 0),
        lambda s: figures.atlas(s, "dep:主語"),
    ):
        with pytest.warns(UserWarning, match="U\\+4E3B"):
            drawn = draw(study)
        assert boxes(drawn) == set()
