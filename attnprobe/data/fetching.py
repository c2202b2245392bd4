"""Fetching public treebanks: licence first, one pinned file, its checksum, a folder of the platform for caches.

pooch keeps the cache and checks the sum; the transfer is done here, since it must go on where it was cut and say what failed in
terms of the user. (Not called `fetch`, so that module and function do not share a name.)
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.data.catalogue import BUNDLED, Treebank, bundled_path, treebank
from attnprobe.errors import EnvironmentFailure, InputError, explain

Progress = Callable[[int, int | None], None]
"""Told (bytes so far, bytes in all or None) while a file is fetched."""

LARGEST = 1 << 30
"""Bytes beyond which a file of unknown size is not fetched on."""

_ATTEMPTS = 4
_WAIT_S = 0.5
_TIMEOUT_S = (10, 60)
_CHUNK = 1 << 13  # what requests has not handed on when a transfer is cut is lost, so not larger
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where fetched treebanks are kept: `ATTNPROBE_CACHE`, else the platform's folder for caches."""
    import pooch

    return Path(os.environ.get("ATTNPROBE_CACHE") or pooch.os_cache("attnprobe"))


def path(name: str) -> Path:
    """The file of a treebank that is here already; `bundled` always is, a public one after `fetch`."""
    entry = treebank(name)
    if entry.name == BUNDLED:
        return bundled_path()
    file = _place(entry, cache_folder())
    if not _intact(file, entry.sha256):
        got = "another content" if file.is_file() else "nothing there"
        remedy = f"Fetch it with `attnprobe fetch {name}`"
        raise InputError(explain(f"the treebank {name!r} is not here", where=str(file), got=got, remedy=remedy))
    return file


def fetch(
    name: str | Treebank,
    *,
    accept_licence: bool = False,
    sha256: str | None = None,
    unchecked: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """The file of a public treebank, fetched unless it is here already.

    Nothing is fetched before the licence is accepted, and nothing is used whose checksum is not the expected one. Where the
    checksum is not known (see `available`), it must be given as `sha256`, or `unchecked` set; then the sum of what came is
    kept beside the file and logged. A transfer that is cut goes on where it stopped, at once and in a later call.

    Raises `InputError` where something must be decided or the name is unknown, `EnvironmentFailure` where the network, the
    server or the disk failed, or the checksum differs.
    """
    entry = treebank(name) if isinstance(name, str) else name
    if entry.name == BUNDLED:
        return bundled_path()
    expected = _expected(entry, sha256, unchecked)
    try:
        place = _place(entry, folder or cache_folder())
        if _intact(place, expected):
            return place
        if not accept_licence:
            remedy = "Read it, then say --accept-licence (accept_licence=True)"
            what = f"{entry.title}, version {entry.version}, is under the licence {entry.licence}, which must be accepted first"
            raise InputError(explain(what, where=entry.url, remedy=remedy))
        return _retrieve(entry, expected, place, progress)
    except EnvironmentFailure:
        raise
    except OSError as error:
        got = error.strerror or str(error)
        remedy = "Check the folder and the free space"
        raise EnvironmentFailure(explain(f"cannot keep the treebank {entry.name!r}", got=got, remedy=remedy)) from error


def _expected(entry: Treebank, given: str | None, unchecked: bool) -> str | None:
    """The checksum to demand; None where the user takes the file unchecked."""
    given = given.strip().lower() if given is not None else None
    if given is not None and (len(given) != 64 or set(given) - set("0123456789abcdef")):
        raise InputError(explain("not a SHA-256 checksum", expected="64 hexadecimal digits", got=repr(given)))
    if entry.sha256 is not None and given not in (None, entry.sha256):
        raise InputError(explain(f"{entry.name!r} is pinned to another checksum", expected=entry.sha256, got=given))
    known = entry.sha256 or given
    if known is None and not unchecked:
        what = (
            f"the checksum of {entry.name!r} ({entry.title}, {entry.licence}) is not known to this version of attnprobe"
        )
        remedy = "Give it with --sha256 (sha256=...), or say --unchecked (unchecked=True) to trust the server"
        raise InputError(explain(what, where=entry.url, remedy=remedy))
    return known


def _place(entry: Treebank, folder: Path) -> Path:
    return folder / "treebanks" / entry.name / entry.version / entry.filename


def _sum_beside(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


def _sum_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _intact(file: Path, expected: str | None) -> bool:
    """Whether the file is here with its checksum: the expected one, else the one kept when it was fetched."""
    if not file.is_file():
        return False
    if expected is None:
        kept = _sum_beside(file)
        expected = kept.read_text().strip() if kept.is_file() else None
    return expected is not None and _sum_of(file) == expected


def _retrieve(entry: Treebank, expected: str | None, place: Path, progress: Progress | None) -> Path:
    import pooch

    part = place.with_name(place.name + ".part")
    transfer = _Transfer(entry, part, resumes=expected is not None, progress=progress)
    known = f"sha256:{expected}" if expected else None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if known is None:
            place.unlink(missing_ok=True)  # pooch takes any file that is here for right where it knows no checksum
        with _quiet(pooch.get_logger()):
            pooch.retrieve(entry.url, known, fname=place.name, path=place.parent, downloader=transfer)
    except ValueError as error:
        remedy = "The file has changed, or something stands between you and the server; nothing was kept"
        what = f"the checksum of {entry.name!r} differs"
        got = transfer.sha256
        raise EnvironmentFailure(
            explain(what, where=entry.url, expected=f"{expected}", got=got, remedy=remedy)
        ) from error
    found = _sum_of(place)
    _sum_beside(place).write_text(found + "\n")
    if expected is None:
        _log.warning("%s was fetched unchecked; its SHA-256 is %s", entry.name, found)
    return place


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Pooch logs each download to stderr at level INFO; the caller shows progress itself."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Cut(Exception):
    """A transfer that ended early, or never began, in a way that a further attempt may mend."""


@dataclass
class _Transfer:
    """pooch's downloader: one file over HTTP, going on where an earlier attempt was cut.

    What has come so far is in `part`. Only a file with a known checksum is gone on with, since nothing else would show that the
    server's file has changed in between.
    """

    entry: Treebank
    part: Path
    resumes: bool
    progress: Progress | None
    sha256: str = ""

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        for attempt in range(_ATTEMPTS):
            if not self.resumes:
                self.part.unlink(missing_ok=True)
            try:
                self._attempt(url)
                break
            except _Cut as error:
                if attempt == _ATTEMPTS - 1:
                    remedy = "Try again later; what has come so far is kept" if self.resumes else "Try again later"
                    raise self._failure(url, f"{error} ({_ATTEMPTS} attempts)", remedy) from error
                time.sleep(_WAIT_S * 2**attempt)
        self.sha256 = _sum_of(self.part)
        os.replace(self.part, output_file)

    def _failure(self, url: str, got: str, remedy: str) -> EnvironmentFailure:
        return EnvironmentFailure(explain(f"cannot fetch {self.entry.name!r}", where=url, got=got, remedy=remedy))

    def _attempt(self, url: str) -> None:
        import requests

        have = self.part.stat().st_size if self.part.is_file() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
                self._receive(url, response, have)
        except requests.exceptions.TooManyRedirects as error:
            raise self._failure(url, "redirects without end", "Check the address and any proxy") from error
        except requests.exceptions.RequestException as error:
            raise _Cut(f"{type(error).__name__}: {error}") from error

    def _receive(self, url: str, response: Any, have: int) -> None:
        status = response.status_code
        if status == 416:  # what is here is as long as the file or longer: begin anew unless it is just complete
            if have != self.entry.size:
                self.part.unlink(missing_ok=True)
                raise _Cut("the server has less than was fetched before")
            return
        if status >= 500 or status == 429:
            raise _Cut(f"status {status} from the server")
        if status not in (200, 206):
            raise self._failure(url, f"status {status} from the server", "Check the address and any proxy")
        have = have if status == 206 else 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else self.entry.size
        limit = self.entry.size or LARGEST
        with self.part.open("ab" if have else "wb") as stream:
            for chunk in response.iter_content(_CHUNK):
                stream.write(chunk)
                have += len(chunk)
                if have > limit:
                    break
                if self.progress is not None:
                    self.progress(have, total)
        if have > limit:
            self.part.unlink()
            raise self._failure(url, f"more than {limit} bytes", "The file has changed; nothing was kept")
        if total is not None and have < total:
            raise _Cut(f"{have} of {total} bytes")
