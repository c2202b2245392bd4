"""What makes a page a file of its own: its policy, its scripts and styles joined, and writing it without leaving half a file."""

from __future__ import annotations

import base64
import hashlib
import os
import uuid
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

import jinja2

from attnprobe.errors import EnvironmentFailure, InputError, explain


def policy(scripts: Iterable[str], styles: Iterable[str], *, more_scripts: str = "") -> str:
    """A Content-Security-Policy that lets these texts of script and style run, shows pictures the page draws, and forbids the rest."""

    def sources(texts: Iterable[str]) -> str:
        digests = (base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    script = f"script-src {sources(scripts)} {more_scripts}".strip()
    parts = (
        "default-src 'none'",
        script,
        f"style-src {sources(styles)}",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(parts)


@cache
def joined(paths: tuple[str, ...]) -> str:
    """Asset files one after the other, by their paths inside `assets`."""
    folder = files("attnprobe.report").joinpath("assets")
    return "\n" + "\n".join(folder.joinpath(*path.split("/")).read_text(encoding="utf-8") for path in paths)


@cache
def template(name: str) -> jinja2.Template:
    """A template with autoescape on, in which a missing value is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnprobe.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def write_page(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a page under a temporary name and rename it.

    Raises `InputError` for a folder, `EnvironmentFailure` where the file cannot be written.
    """
    path = Path(path)
    if path.is_dir() or not path.name:
        raise InputError(explain("cannot write the page", where=str(path), expected="a file name", got="a folder"))
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        temporary.write_bytes(text.encode("utf-8", "xmlcharrefreplace"))
        os.replace(temporary, path)
    except OSError as error:
        remedy = "Check that the folder exists, may be written to and has space"
        what = explain("cannot write the page", where=str(path), got=str(error), remedy=remedy)
        raise EnvironmentFailure(what) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path
