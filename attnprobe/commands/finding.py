"""Finding things: `list` (what can be asked for by name), `fetch` (public treebanks), `doctor` (what this machine has)."""

from __future__ import annotations

import json
import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from attnprobe.commands.options import Debug, Json, Quiet
from attnprobe.errors import InputError, near_names


def list_entries(
    what: Annotated[str, typer.Argument(help="metrics, relations, scorers, extras, tasks or treebanks.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What can be asked for by name: name, unit or kind, source, and the file and line of its definition."""
    others = {"scorers": _scorers, "extras": _extras, "treebanks": _treebanks}
    tables = ("metrics", "relations", "tasks", *others)
    if what not in tables:
        raise InputError(f"cannot list {what!r}; {near_names(what, tables)}.")
    rows = others[what]() if what in others else _registered(what)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        name, kind, *rest = row.items()
        print(f"{name[1]}  [{kind[1]}]")
        for key, value in rest:
            print(f"    {'' if key == 'about' else key + ': '}{value}")


def _registered(what: str) -> list[dict[str, Any]]:
    from attnprobe.registry import METRICS, PROBE_TASKS, RELATIONS, location

    known: dict[str, tuple[str, Any]] = {
        "metrics": ("attnprobe.heads.metrics", METRICS),
        "relations": ("attnprobe.heads.relations", RELATIONS),
        "tasks": ("attnprobe.probes.tasks", PROBE_TASKS),
    }
    module, registry = known[what]
    import_module(module)
    entries: list[Any] = list(registry)
    return [
        {
            "name": entry.name,
            **({"unit": entry.unit} if hasattr(entry, "unit") else {"kind": entry.kind}),
            "about": _first_paragraph(entry.function),
            "source": entry.source,
            "defined": location(entry),
        }
        for entry in entries
    ]


def _first_paragraph(documented: Any) -> str:
    return " ".join((documented.__doc__ or "").strip().split("\n\n")[0].split())


def _scorers() -> list[dict[str, Any]]:
    from attnprobe.heads.scorers import SCORERS
    from attnprobe.registry import location

    return [
        {
            "name": name,
            "kind": "scorer of relations",
            "about": _first_paragraph(maker),
            "source": " ".join((maker.__doc__ or "").partition("Source: ")[2].split()),
            "defined": location(maker),
        }
        for name, maker in SCORERS.items()
    ]


def _extras() -> list[dict[str, Any]]:
    from attnprobe.heads.alongside import EXTRAS

    return [{"name": name, "kind": "groups of a study", "about": extra.about} for name, extra in EXTRAS.items()]


def _treebanks() -> list[dict[str, Any]]:
    from attnprobe.data import available

    return [
        {
            "name": entry.name,
            "licence": entry.licence,
            "about": entry.title,
            "version": entry.version,
            "url": entry.url or "comes with the package",
            **({"sha256": entry.sha256 or "not known: give --sha256, or --unchecked"} if entry.url else {}),
            "size": entry.size,
        }
        for entry in available()
    ]


def fetch(
    name: Annotated[str, typer.Argument(help="A treebank of `attnprobe list treebanks`.")],
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the licence that is shown.")
    ] = False,
    sha256: Annotated[str | None, typer.Option("--sha256", help="Checksum to demand where none is known.")] = None,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Take a file whose checksum is not known.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fetch a public treebank: licence first, pinned version and checksum, kept in the platform's cache folder."""
    from attnprobe.data import fetch as fetch_treebank
    from attnprobe.data import treebank

    entry = treebank(name)
    path = fetch_treebank(name, accept_licence=accept_licence, sha256=sha256, unchecked=unchecked)
    told = {"treebank": name, "path": str(path), "version": entry.version, "licence": entry.licence}
    print(json.dumps(told) if as_json else f"{entry.title} ({entry.licence}): {path}")


def doctor(as_json: Json = False, debug: Debug = False) -> None:
    """What this machine has: versions, devices, the embedded model, optional parts and what each is for."""
    import torch

    from attnprobe.data import cache_folder
    from attnprobe.models.sources import MINILM_PACKAGE

    libraries = ("attnprobe", "torch", "transformers", "numpy", "xarray", "h5netcdf", "matplotlib", "bertviz")
    optional = {
        "embedded model": (MINILM_PACKAGE, "demo", "`minilm` without a network"),
        "Ray": ("ray", "ray", "shards on several processes or machines"),
        "bertviz offline": ("mpld3", "bertviz-offline", "bertviz views without a network"),
        "Parquet": ("pyarrow", None, "Parquet corpora"),
    }
    told = {
        "python": platform.python_version(),
        "versions": {library: _version(library) for library in libraries},
        "devices": [
            "cpu",
            *(["cuda"] if torch.cuda.is_available() else []),
            *(["mps"] if torch.backends.mps.is_available() else []),
        ],
        "threads": torch.get_num_threads(),
        "cache": str(cache_folder()),
        "optional": {
            what: "found" if find_spec(package) else f"absent ({use}): pip install {_package(extra, package)}"
            for what, (package, extra, use) in optional.items()
        },
    }
    if as_json:
        print(json.dumps(told, indent=2))
        return
    for key, value in told.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, item in value.items():
                print(f"    {name}: {item}")
        else:
            print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


def _package(extra: str | None, package: str) -> str:
    return f"'attnprobe[{extra}]'" if extra else package
