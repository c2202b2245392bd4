"""Exceptions: few, each with the exit code the command line gives it.

A message says what failed, where, what was expected, what was got, and what to do; `explain` puts those parts together, so that
every error in the package reads alike.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class AttnprobeError(Exception):
    """Base of all errors raised on purpose; the command line exits with `exit_code`."""

    exit_code = 70


class InputError(AttnprobeError, ValueError):
    """Wrong use or bad input: a file, a name, an option, a text, a model that cannot be analysed."""

    exit_code = 2


class CaptureError(AttnprobeError, RuntimeError):
    """A forward pass from which attention could not be taken as asked."""

    exit_code = 2


class VerificationError(AttnprobeError):
    """What was captured does not match what the model did; nothing may be analysed."""

    exit_code = 1


class EnvironmentFailure(AttnprobeError, OSError):
    """Network, disk or a worker failed; the request itself was right."""

    exit_code = 3


def explain(
    what: str,
    *,
    where: str | None = None,
    expected: str | None = None,
    got: str | None = None,
    remedy: str | None = None,
) -> str:
    """One message out of its parts: what failed, where, expected, got, what to do.

    >>> explain("cannot read the corpus", where="a.conllu:3", expected="10 columns", got="4")
    'cannot read the corpus at a.conllu:3: expected 10 columns, got 4.'
    """
    head = what if where is None else f"{what} at {where}"
    found = [f"{name} {value}" for name, value in (("expected", expected), ("got", got)) if value is not None]
    body = f"{head}: {', '.join(found)}" if found else head
    return " ".join(part if part.endswith("?") else f"{part.rstrip('.')}." for part in (body, remedy) if part)


def near_names(name: str, known: Iterable[str], limit: int = 5) -> str:
    """The known names that look like `name`, for the end of an "unknown name" message; all of them where none is near.

    >>> near_names("entrpy", ["entropy", "distance"])
    'near names: entropy'
    """
    known = sorted(known)
    near = get_close_matches(name, known, n=limit, cutoff=0.5)
    return f"near names: {', '.join(near)}" if near else f"known names: {', '.join(known)}"
