"""The table of families out of the results of `sweep_families.py`: what each type came to, and totals with their denominators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"

Result = dict[str, Any]


def verdict(result: Result) -> str:
    """verified, partly, differs, refused, no attention, or not run."""
    if result["stage"] != "ran":
        return "not run"
    eager = result["eager"]
    if "error" in eager:
        nothing = "no attention was captured" in eager["error"] and "Attention was seen" not in eager["error"]
        return "no attention" if nothing else "refused"
    if eager["ok"]:
        return "verified"
    return "partly" if any("not captured" in note for note in eager["notes"]) else "differs"


def attends(result: Result) -> bool:
    """Whether a type ran and computes attention."""
    return verdict(result) not in ("not run", "no attention")


def route(result: Result) -> str:
    """By which routes its attention is seen."""
    calls, on = result["eager"].get("calls", 0), result["interface_calls"]
    if calls == 0:
        return ""
    return (
        "interface"
        if calls == on and verdict(result) != "partly"
        else "flow"
        if on == 0
        else f"interface {on}, flow {calls - on}"
    )


def why(result: Result) -> str:
    """What is to be known of a type beside its numbers."""
    if result["stage"] != "ran":
        return _short(result["reason"])
    if verdict(result) == "no attention":
        return ""
    eager, sdpa = result["eager"], result["sdpa"]
    told = [eager["error"]] if "error" in eager else list(eager["notes"])
    if told and all("changes the context" in note for note in told):
        told = ["changes the context before its output projection"]
    if result["inputs"] != "all":
        told.append("run on text alone" if result["inputs"] == "text" else "run on vectors in place of ids")
    if "ok" in sdpa and not sdpa["ok"] and verdict(result) == "verified":
        told.append("under sdpa: " + ("; ".join(sdpa["notes"][:1]) or "another pattern than under eager"))
    return _short("; ".join(told)) if told else ""


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/").replace("<", "&lt;")
    return text if len(text) <= 150 else text[:147] + "..."


def row(result: Result) -> str:
    """One line of the table."""
    cells = [f"`{result['type']}`", verdict(result)]
    if result["stage"] == "ran" and "calls" in result["eager"]:
        eager, sdpa = result["eager"], result["sdpa"]
        exact = "same bits" if eager["bitwise"] else "within tolerance" if eager["ok"] else ""
        cells += [str(eager["calls"]), _power(eager["context"]), exact, _sdpa(sdpa), route(result)]
    else:
        cells += [""] * 5
    return "| " + " | ".join([*cells, why(result)]) + " |"


def _power(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.0e}"


def _sdpa(sdpa: Result) -> str:
    if "refused" in sdpa:
        return "not offered"
    return "not captured" if "error" in sdpa else _power(sdpa["context"]) if sdpa["ok"] else "no"


def totals(results: list[Result]) -> list[str]:
    """Sentences with their denominators."""
    ran = [r for r in results if r["stage"] == "ran"]
    attending = [r for r in ran if attends(r)]
    on = [r for r in attending if r["interface_calls"]]
    only = [r for r in on if r["interface_calls"] == r["eager"].get("calls") and verdict(r) != "partly"]
    counts = Counter(verdict(r) for r in attending)
    good = [r for r in attending if verdict(r) == "verified"]
    offered = [r for r in attending if "refused" not in r["sdpa"]]
    return [
        f"{len(results)} model types are registered; {len(ran)} of them could be built small and run, and {len(attending)} of those attend.",
        f"On the attention-function interface: {len(on)} of {len(attending)}; "
        f"{sum(verdict(r) == 'verified' for r in on)} of these {len(on)} are verified ({_share(sum(verdict(r) == 'verified' for r in on), len(on))}).",
        f"All of their attention goes through it in {len(only)}; {len(on) - len(only)} attend partly outside it, and {len(attending) - len(on)} wholly.",
        f"Verified, every attention call captured and recomputed from q and k: {len(good)} of {len(attending)} ({_share(len(good), len(attending))}); "
        f"{sum(r['eager']['bitwise'] for r in good)} of these {len(good)} with the same bits in every weight and context.",
        f"The rest of the {len(attending)}: {counts['partly']} partly (some modules cannot be read), {counts['refused']} refused with a reason, {counts['differs']} differ.",
        f"{sum(r['inputs'] != 'all' for r in attending)} of the {len(attending)} were run on text (or vectors) alone, without the images or sound they also take.",
        f"Under sdpa, where the type offers it: {sum(bool(r['sdpa'].get('ok')) for r in offered)} of {len(offered)} verified.",
    ]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "undefined"


def table(results: list[Result], head: str) -> str:
    """Totals, then one line for each type."""
    results = sorted(results, key=lambda r: r["type"])
    lines = [head, "", *(f"- {line}" for line in totals(results)), ""]
    lines += [
        "| type | verdict | calls | context error | eager replay | context error, sdpa | route | remarks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(row, results)])


def write(page: Path, text: str) -> None:
    """Put the table between the markers of a page. Raises `ValueError` where there are none."""
    before, found, rest = page.read_text().partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{page} has no markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
