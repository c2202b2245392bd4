"""Every Python block of the documentation runs; local links exist; the pages named in the navigation are there; it builds without a warning."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(page):
    return str(page.relative_to(DOCS))


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))], ids=name)
def test_python_blocks_run(page, tmp_path):
    script = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_local_links_exist(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_navigation_names_every_page():
    told = set(re.findall(r": (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert told == {name(page) for page in PAGES}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as it is published; a warning is an error."""
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("docs: mkdocs and mkdocstrings are not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_it_builds_without_a_warning(site):
    assert {page.with_suffix(".html") for page in map(Path, map(name, PAGES))} <= {
        found.relative_to(site) for found in site.rglob("*.html")
    }
    assert not list(site.rglob("*.py"))


def test_examples_of_the_reference_are_code(site):
    """`>>>` would be a quotation within a quotation."""
    text = (site / "api.html").read_text(encoding="utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text
    assert "<blockquote>" not in text


@pytest.mark.browser
def test_hostile_text_in_the_documentation_runs_nothing(site, chromium):
    page = chromium.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    page.goto((site / "recipes.html").as_uri())
    text = page.locator("article").inner_text()
    assert "</script><script>document.title=1</script>" in text
    assert "<img src=x onerror=alert(1)>" in text
    assert "&amp;" in text
    assert page.title() == "Recipes - attnprobe"
    assert page.locator("article img").count() == 0
    assert [address for address in asked if not address.startswith("file:")] == []
    page.close()


@pytest.mark.parametrize(("code", "runs"), [(0, 1), (2, 1), (3, 5)])
def test_the_recipe_that_goes_on_after_a_failure_comes_to_an_end(code, runs):
    """The loop as printed, in a shell in which the command does nothing but end with that code."""
    [loop] = re.findall(r"^for attempt .*?^done$", (DOCS / "recipes.md").read_text(), re.DOTALL | re.MULTILINE)
    script = f"attnprobe() {{ echo run; return {code}; }}\nsleep() {{ :; }}\n{loop}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=10)
    assert done.stdout.split() == ["run"] * runs
