"""Other people's scripts for a bertviz page, read from the installed packages when the page is made: bertviz's views, d3, jQuery, require.js.

bertviz itself is never imported (that would import torch); each change to its text is checked to have found its place.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from attnprobe.errors import InputError, explain

EXTRA = "bertviz-offline"
LIBRARIES = {
    "d3": ("mpld3", "mpld3/js/d3.v5.min.js"),
    "jQuery": ("xstatic-jquery", "xstatic/pkg/jquery/data/jquery.min.js"),
    "require.js": ("nbclassic", "nbclassic/static/components/requirejs/require.js"),
}
"""Library -> package that carries it, and where. In this order: require.js must come last, or the others would register with it unnamed."""
D3_VERSION = "v5."
NETWORK = "https://cdnjs.cloudflare.com"
REQUIRE_URL = f"{NETWORK}/ajax/libs/require.js/2.3.6/require.min.js"
"""What bertviz loads where it has a network."""
SHIMS = 'define("jquery", [], () => jQuery);\ndefine("d3", [], () => d3);\n'
READY = 'requirejs(["jquery", "d3"], () => { document.documentElement.dataset.ready = "yes"; });\n'
"""Comes after the drawings, which wait for the same modules."""
ADDRESSES = re.compile(r"require\.config\(\{.*?\}\);", re.DOTALL)


def bertviz_version() -> str:
    return _distribution("bertviz", "pip install bertviz").version


def libraries() -> list[str]:
    """The texts of d3, jQuery and require.js, in the order they must run; raises `InputError` where one is not installed."""
    texts = []
    for library, (package, path) in LIBRARIES.items():
        remedy = (
            f"Run `pip install 'attnprobe[{EXTRA}]'`, or pass offline=False for a page that loads it from a network"
        )
        file = Path(str(_distribution(package, remedy, library).locate_file(path)))
        if not file.is_file():
            raise InputError(
                explain(
                    f"{package} no longer carries {library}",
                    where=path,
                    expected="a file",
                    got="nothing there",
                    remedy=remedy,
                )
            )
        text = file.read_text(encoding="utf-8")
        if library == "d3" and D3_VERSION not in text[:80]:
            raise InputError(explain("bertviz needs d3 of version 5", where=str(file), got=text[:40], remedy=remedy))
        texts.append(inline(text))
    return texts


def _distribution(package: str, remedy: str, library: str = "") -> metadata.Distribution:
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError as error:
        what = f"a bertviz page needs {library or package}"
        raise InputError(
            explain(what, expected=f"the package {package}", got="it is not installed", remedy=remedy)
        ) from error


def drawing(kind: str, data_id: str, *, offline: bool) -> str:
    """The script that draws a view, taking its parameters from the element `data_id` of the page."""
    file = Path(str(_distribution("bertviz", "pip install bertviz").locate_file(f"bertviz/{kind}_view.js")))
    if not file.is_file():
        raise InputError(
            explain("this bertviz has no such view", where=str(file), expected="a file", got="nothing there")
        )
    text = file.read_text(encoding="utf-8")
    marker = "window.bertviz_params" if kind == "neuron" else "PYTHON_PARAMS"
    text = _changed(text, marker, f'attnprobeParameters("{data_id}")')
    if kind == "neuron":
        # its own selector would find the first view of the page, and its height forgets the queries
        text = _changed(text, 'd3.select("#vis")', "d3.select(`#${config.rootDivId} #vis`)")
        text = _changed(
            text, "config.initialTextLength * BOXHEIGHT", "Math.max(leftText.length, rightText.length) * BOXHEIGHT"
        )
    if offline:
        found = ADDRESSES.search(text)
        text = _changed(text, found[0] if found else "require.config({...})", "")
    return inline(text)


def _changed(text: str, old: str, new: str) -> str:
    if old not in text:
        version = bertviz_version()
        raise InputError(
            explain(
                f"bertviz {version} is not laid out as expected",
                expected=repr(old),
                got="no such text",
                remedy="Use bertviz 1.4.1",
            )
        )
    return text.replace(old, new, 1)


def inline(text: str) -> str:
    """A script that can stand inside a script element."""
    return re.sub(r"</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")
