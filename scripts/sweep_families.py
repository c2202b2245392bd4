"""Capture and verify attention of every model type that transformers registers, tiny and with random weights, and make the table.

    python scripts/sweep_families.py --out families.jsonl --jobs 2
    python scripts/sweep_families.py --out families.jsonl --table docs/families.md

Each type runs in a process of its own, forked from one that has the libraries loaded, limited in time and memory. Results are
lines of JSON; types that have one are not run again, so that a stopped sweep goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from families import configs, table
from families.classes import model_class, registered
from families.inputs import NoInputs, find_inputs

import attnprobe
from attnprobe.errors import AttnprobeError
from attnprobe.models.interface import recording

SECONDS, GIGABYTES = 60, 8
"""Limits of one type."""

WARM = ("bert", "vit", "bart", "qwen2_vl", "wav2vec2", "sam", "align")
"""Types whose classes are looked up before the first fork: between them they import what most others need."""


def examine(model_type: str) -> dict[str, Any]:
    """Everything that is found out about one type."""
    found: dict[str, Any] = {"type": model_type, "stage": "no class"}
    reasons: list[str] = []
    try:
        kind = model_class(model_type)
        found["class"] = kind.__name__
        for plan in configs.PLANS:
            found["stage"] = max(found["stage"], "not built", key=STAGES.index)
            try:
                module = configs.build(kind, model_type, plan, "eager")
                found["stage"] = max(found["stage"], "not run", key=STAGES.index)
                inputs, found["inputs"] = _inputs(module, found)
            except Exception as error:
                reasons.append(_line(error))
                continue
            found.update(stage="ran", plan=plan, parameters=sum(p.numel() for p in module.parameters()))
            found.update(measure(kind, model_type, plan, module, inputs))
            return found
    except (LookupError, ImportError, AttributeError) as error:
        reasons.append(_line(error))
    return {**found, "reason": reasons[0]}


STAGES = ("no class", "not built", "not run", "ran")


def _inputs(module: nn.Module, found: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Inputs of all kinds that the model takes, or of text alone where no others run."""
    try:
        return find_inputs(module), "all"
    except NoInputs as error:
        found["other_inputs"] = _line(error)
    try:
        return find_inputs(module, parts=False), "text"
    except NoInputs:
        return find_inputs(module, vectors=True), "vectors"


def measure(kind: type, model_type: str, plan: str, module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """What verification says of both attention functions, and how many calls the interface sees."""
    calls: list[Any] = []
    with torch.no_grad(), recording(calls.append):
        module(**inputs)
    found: dict[str, Any] = {"interface_calls": len(calls), "eager": check(module, inputs)}
    del calls
    try:
        module = configs.build(kind, model_type, plan, "sdpa")
    except Exception as error:
        return {**found, "sdpa": {"refused": _line(error)}}
    return {**found, "sdpa": check(module, inputs)}


def check(module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Verification of one module, as a few numbers."""
    try:
        checked = attnprobe.verify(attnprobe.load((module, None)), **inputs)
    except AttnprobeError as error:
        return {"error": _line(error)}
    off = np.stack(
        [checked.pattern_max_abs / checked.pattern_tolerance, checked.context_max_abs / checked.context_tolerance]
    )
    return {
        "ok": checked.ok,
        "implementation": checked.attn_implementation,
        "calls": checked.n_layers,
        "pattern": _number(np.fmax.reduce(checked.pattern_max_abs)),
        "context": _number(np.max(checked.context_max_abs)),
        "share": _number(np.fmax.reduce(off, axis=None)),
        "compared": int(np.isfinite(checked.pattern_max_abs).sum()),
        "bitwise": bool(checked.bitwise.all()),
        "rows": int(checked.rows_checked.sum()),
        "excluded": int(checked.rows_excluded.sum()),
        "notes": list(checked.notes)[:4],
    }


def _number(value: float) -> float | None:
    """A number as JSON has it."""
    return float(value) if np.isfinite(value) else None


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:240]}" if not isinstance(error, (NoInputs, AttnprobeError)) else text[:300]


def sweep(types: Iterable[str], out: Path, jobs: int) -> None:
    """Run types, `jobs` at a time, and append a line for each as it is done."""
    queue, running = list(types)[::-1], {}
    with out.open("a") as stream:
        while queue or running:
            while queue and len(running) < jobs:
                name = queue.pop()
                pid, pipe = _start(name)
                running[pipe] = (pid, name, b"")
            for pipe in select.select(list(running), [], [])[0]:
                pid, name, data = running.pop(pipe)
                chunk = os.read(pipe, 1 << 16)
                if chunk:
                    running[pipe] = (pid, name, data + chunk)
                    continue
                os.close(pipe)
                died = os.waitpid(pid, 0)[1] & 127
                reason = f"over {SECONDS} s" if died == signal.SIGALRM else f"killed by signal {died}"
                stream.write((data.decode() or json.dumps({"type": name, "stage": "died", "reason": reason})) + "\n")
                stream.flush()


def _start(model_type: str) -> tuple[int, int]:
    """A process that examines one type, and the pipe on which it tells."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    began = time.process_time()
    try:
        found = examine(model_type)
    except BaseException as error:
        found = {"type": model_type, "stage": "died", "reason": _line(error)}
    found["seconds"] = round(time.process_time() - began, 2)
    with os.fdopen(write, "w") as pipe:
        json.dump(found, pipe)
    os._exit(0)


def warm() -> None:
    """Import what types share, once, before anything is forked."""
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    warnings.simplefilter("ignore")
    for name in WARM:
        model_class(name)
    attnprobe.load, attnprobe.verify  # noqa: B018 (imported when first asked for)


def _head() -> str:
    import transformers

    return (
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}, float32, eager and sdpa, random weights "
        "(deviation 0.3 at a width of 64), one batch of two with padding where there is text."
    )


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="results, one line of JSON a type; kept and added to")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default: %(default)s)")
    parser.add_argument("--types", nargs="*", help="only these types")
    parser.add_argument("--table", type=Path, help="write the table into this page and run nothing")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    results = [json.loads(line) for line in lines]
    if options.table:
        table.write(options.table, table.table(results, _head()))
        print("\n".join(table.totals(results)))
        return 0
    warm()
    done = {result["type"] for result in results}
    sweep([name for name in options.types or registered() if name not in done], options.out, options.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
