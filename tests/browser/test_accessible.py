"""axe-core over report, comparison and viewer, light and dark, narrow and wide: no serious violation; and that it finds one that is there."""

from importlib.resources import files

import pytest

from attnprobe.report.page import write_report
from attnprobe.report.view import view
from tests.report.test_page_studies import compared, extras, failed, profiled
from tests.report.test_view_stacks import pair_view, sentence_view

pytestmark = pytest.mark.browser
RUN = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accessible")
    return {
        "report": write_report(extras(), folder / "report.html"),
        "report-zh": write_report(extras(), folder / "report-zh.html", lang="zh"),
        "verdicts": write_report(profiled(), folder / "verdicts.html"),
        "unverified": write_report(failed(), folder / "unverified.html"),
        "comparison": write_report(compared(), folder / "comparison.html"),
        "viewer": view(sentence_view()).save(folder / "viewer.html"),
        "pair": view(pair_view()).save(folder / "pair.html"),
    }


@pytest.fixture(scope="module")
def axe():
    package = pytest.importorskip("axe_playwright_python", reason="axe-core comes with axe-playwright-python")
    return files(package).joinpath("axe.min.js").read_text(encoding="utf-8")


def violations(page, axe):
    """Serious and critical violations: rule, and what they are on."""
    page.evaluate(f"() => {{ {axe}\n}}")
    found = page.evaluate(RUN)["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(one["id"], [node["html"][:160] for node in one["nodes"]][:4]) for one in grave]


def unfold(page):
    """Everything that a reader can open without leaving the page."""
    for summary in page.locator("details > summary").all():
        if summary.is_visible():
            summary.click()
    if page.locator("#patterns-app").count():
        page.locator("#patterns-app").scroll_into_view_if_needed()
        page.wait_for_selector(".thumb-button canvas[data-drawn]")
        page.locator("[data-mode=arcs]").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "report-zh", "verdicts", "unverified", "comparison", "viewer", "pair"])
def test_no_serious_violation(name, scheme, pages, open_page, axe):
    page = open_page(pages[name], scheme=scheme, fragment="#L0H1").page
    unfold(page)
    assert violations(page, axe) == []


@pytest.mark.parametrize("name", ["report", "comparison", "viewer"])
def test_none_on_a_telephone_either(name, pages, open_page, axe):
    page = open_page(pages[name], width=320).page
    unfold(page)
    assert violations(page, axe) == []


@pytest.mark.parametrize("head", ["#L0H0", "#L0H2", "#L1H2"])
def test_no_card_has_one(head, pages, open_page, axe):
    page = open_page(pages["report"], fragment=head).page
    assert violations(page, axe) == []


@pytest.mark.parametrize("tab", ["lines", "neurons"])
def test_no_view_of_the_viewer_has_one(tab, pages, open_page, axe):
    page = open_page(pages["viewer"]).page
    page.locator(f"[data-view={tab}]").click()
    assert violations(page, axe) == []


def test_one_that_is_there_is_found(pages, open_page, axe):
    page = open_page(pages["viewer"]).page
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert [rule for rule, _ in violations(page, axe)] == ["label"]
