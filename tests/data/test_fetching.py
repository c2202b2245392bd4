import hashlib
import logging
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from attnprobe import data
from attnprobe.data import catalogue, fetching
from attnprobe.data.catalogue import Treebank
from attnprobe.errors import EnvironmentFailure, InputError

CONTENT = b"".join(b"%d\tw\n" % i for i in range(19_997))
SUM = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)
CUT = 50_021
KEPT = CUT // fetching._CHUNK * fetching._CHUNK
"""What is left of a cut answer whose length was announced: requests drops the last, partial chunk."""


class Server(ThreadingHTTPServer):
    """Serves CONTENT in the ways that servers fail; what was asked is in `asked`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.cuts = 0
        """How many more answers of /cut stop halfway."""

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}/a.conllu"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        kind = self.path.split("/")[1]
        start = int(match[1]) if (match := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        self.server.asked.append((kind, start))
        assert self.headers["Accept-Encoding"] == "identity"
        getattr(self, f"say_{kind}")(start)

    def answer(self, body, *, status=200, start=0, until=None, announce=True):
        self.send_response(206 if start else status)
        if announce:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start:until])

    def say_whole(self, start):
        if start >= len(CONTENT):
            self.send_error(416)
        else:
            self.answer(CONTENT, start=start)

    def say_other(self, start):
        self.answer(CONTENT[:-1] + b"X", start=start)

    def say_larger(self, start):
        self.answer(CONTENT * 3)

    def say_cut(self, start):
        self.server.cuts -= 1
        self.answer(CONTENT, start=start, until=start + CUT if self.server.cuts >= 0 else None)

    def say_silent_cut(self, start):
        self.server.cuts -= 1
        self.answer(CONTENT, start=start, until=start + CUT if self.server.cuts >= 0 else None, announce=False)

    def say_no_ranges(self, start):
        self.server.cuts -= 1
        self.answer(CONTENT, until=CUT if self.server.cuts >= 0 else None)

    def say_broken(self, start):
        self.server.cuts -= 1
        if self.server.cuts >= 0:
            self.send_error(500)
        else:
            self.answer(CONTENT)

    def say_absent(self, start):
        self.send_error(404)

    def say_round(self, start):
        self.send_response(302)
        self.send_header("Location", "/round/b.conllu")
        self.end_headers()

    def say_elsewhere(self, start):
        self.send_response(302)
        self.send_header("Location", "/whole/b.conllu")
        self.end_headers()


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(fetching, "_WAIT_S", 0.0)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def entry(server, path, *, sha256=SUM, size=SIZE):
    return Treebank("toy", "A toy treebank", "7", "CC BY 4.0", server.url(path), sha256, size)


def left_over(folder):
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


def test_a_file_is_fetched_once(server, tmp_path):
    seen = []
    file = data.fetch(
        entry(server, "whole"),
        accept_licence=True,
        folder=tmp_path,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert file.read_bytes() == CONTENT
    assert file == tmp_path / "treebanks" / "toy" / "7" / "a.conllu"
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 2
    assert data.fetch(entry(server, "whole"), folder=tmp_path) == file
    assert server.asked == [("whole", 0)]


def test_redirects_are_followed(server, tmp_path):
    assert data.fetch(entry(server, "elsewhere"), accept_licence=True, folder=tmp_path).read_bytes() == CONTENT


def test_a_spoilt_file_is_fetched_again(server, tmp_path):
    file = data.fetch(entry(server, "whole"), accept_licence=True, folder=tmp_path)
    file.write_bytes(CONTENT[:-7])
    assert data.fetch(entry(server, "whole"), accept_licence=True, folder=tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_the_licence_comes_first(server, tmp_path):
    with pytest.raises(
        InputError, match=r"A toy treebank, version 7, is under the licence CC BY 4.0, .*--accept-licence"
    ):
        data.fetch(entry(server, "whole"), folder=tmp_path)
    assert server.asked == []
    assert left_over(tmp_path) == []


def test_a_wrong_checksum_is_refused_and_nothing_kept(server, tmp_path):
    with pytest.raises(EnvironmentFailure) as caught:
        data.fetch(entry(server, "other"), accept_licence=True, folder=tmp_path)
    other = hashlib.sha256(CONTENT[:-1] + b"X").hexdigest()
    for part in (
        "the checksum of 'toy' differs",
        server.url("other"),
        f"expected {SUM}",
        f"got {other}",
        "nothing was kept",
    ):
        assert part in str(caught.value)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(("path", "kept"), [("cut", KEPT), ("silent_cut", CUT)])
def test_a_cut_transfer_goes_on_where_it_stopped(server, tmp_path, path, kept):
    server.cuts = 2
    assert data.fetch(entry(server, path), accept_licence=True, folder=tmp_path).read_bytes() == CONTENT
    assert server.asked == [(path, 0), (path, kept), (path, 2 * kept)]
    assert left_over(tmp_path) == ["a.conllu", "a.conllu.sha256"]


def test_a_later_call_goes_on_too(server, tmp_path, monkeypatch):
    server.cuts = 99
    monkeypatch.setattr(fetching, "_ATTEMPTS", 2)
    with pytest.raises(
        EnvironmentFailure, match=r"cannot fetch 'toy' at .*\(2 attempts\). Try again later; what has come"
    ):
        data.fetch(entry(server, "cut"), accept_licence=True, folder=tmp_path)
    assert left_over(tmp_path) == ["a.conllu.part"]
    server.cuts = 0
    assert data.fetch(entry(server, "cut"), accept_licence=True, folder=tmp_path).read_bytes() == CONTENT
    assert [start for _, start in server.asked] == [0, KEPT, 2 * KEPT]


def test_a_server_without_ranges_begins_anew(server, tmp_path):
    server.cuts = 1
    assert data.fetch(entry(server, "no_ranges"), accept_licence=True, folder=tmp_path).read_bytes() == CONTENT
    assert server.asked == [("no_ranges", 0), ("no_ranges", KEPT)]


@pytest.mark.parametrize("there", [len(CONTENT), len(CONTENT) + 13], ids=["whole", "too long"])
def test_a_part_that_is_all_or_more_than_all(server, tmp_path, there):
    part = tmp_path / "treebanks" / "toy" / "7" / "a.conllu.part"
    part.parent.mkdir(parents=True)
    part.write_bytes((CONTENT + b"?" * 13)[:there])
    assert data.fetch(entry(server, "whole"), accept_licence=True, folder=tmp_path).read_bytes() == CONTENT


def test_errors_of_the_server_are_tried_again_then_told(server, tmp_path):
    server.cuts = 2
    assert data.fetch(entry(server, "broken"), accept_licence=True, folder=tmp_path).read_bytes() == CONTENT
    server.cuts = 99
    with pytest.raises(
        EnvironmentFailure, match=r"cannot fetch 'toy' at .*: got status 500 from the server \(4 attempts\)"
    ):
        data.fetch(entry(server, "broken"), accept_licence=True, folder=tmp_path / "b")
    assert left_over(tmp_path / "b") == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "got status 404 from the server. Check"),
        ("round", "got redirects without end"),
        ("larger", "more than .* bytes"),
    ],
)
def test_what_no_further_attempt_would_mend(server, tmp_path, path, message):
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        data.fetch(entry(server, path), accept_licence=True, folder=tmp_path)
    assert caught.value.exit_code == 3
    assert left_over(tmp_path) == []
    assert len(server.asked) == (31 if path == "round" else 1)


def test_a_file_larger_than_announced_is_not_read_on(server, tmp_path):
    seen = []
    with pytest.raises(EnvironmentFailure, match=f"more than {SIZE} bytes"):
        data.fetch(
            entry(server, "larger"), accept_licence=True, folder=tmp_path, progress=lambda *now: seen.append(now)
        )
    assert 0 < max(done for done, _ in seen) <= SIZE


def test_no_server_at_all(server, tmp_path):
    nowhere = Treebank("toy", "A toy treebank", "7", "CC BY 4.0", "http://127.0.0.1:1/a.conllu", SUM, None)
    with pytest.raises(
        EnvironmentFailure, match=r"cannot fetch 'toy' at http://127.0.0.1:1/a.conllu: got ConnectionError"
    ):
        data.fetch(nowhere, accept_licence=True, folder=tmp_path)


def test_an_unknown_checksum_must_be_given_or_waived(server, tmp_path, caplog):
    unknown = entry(server, "whole", sha256=None, size=None)
    with pytest.raises(
        InputError, match=r"the checksum of 'toy' \(A toy treebank, CC BY 4.0\) is not known .*--sha256 .*--unchecked"
    ):
        data.fetch(unknown, accept_licence=True, folder=tmp_path)
    with pytest.raises(EnvironmentFailure, match="checksum of 'toy' differs"):
        data.fetch(unknown, accept_licence=True, folder=tmp_path, sha256="0" * 64)
    assert left_over(tmp_path) == []
    assert data.fetch(unknown, accept_licence=True, folder=tmp_path, sha256=SUM.upper()).read_bytes() == CONTENT
    with caplog.at_level(logging.WARNING):
        file = data.fetch(unknown, accept_licence=True, folder=tmp_path / "b", unchecked=True)
    assert f"toy was fetched unchecked; its SHA-256 is {SUM}" in caplog.text
    n = len(server.asked)
    assert data.fetch(unknown, folder=tmp_path / "b", unchecked=True) == file
    assert len(server.asked) == n
    file.write_bytes(b"spoilt")
    assert data.fetch(unknown, accept_licence=True, folder=tmp_path / "b", unchecked=True).read_bytes() == CONTENT


def test_without_a_checksum_nothing_is_gone_on_with(server, tmp_path):
    server.cuts = 2
    unknown = entry(server, "cut", sha256=None, size=None)
    assert data.fetch(unknown, accept_licence=True, folder=tmp_path, unchecked=True).read_bytes() == CONTENT
    assert [start for _, start in server.asked] == [0, 0, 0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("abc", "not a SHA-256 checksum: expected 64 hexadecimal digits, got 'abc'"),
        ("0" * 64, "pinned to another checksum"),
    ],
)
def test_a_checksum_that_cannot_be(server, tmp_path, given, message):
    with pytest.raises(InputError, match=message):
        data.fetch(entry(server, "whole"), accept_licence=True, folder=tmp_path, sha256=given)


def test_a_folder_that_cannot_be_written(server, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(EnvironmentFailure, match="cannot keep the treebank 'toy': got .*. Check the folder"):
        data.fetch(entry(server, "whole"), accept_licence=True, folder=blocked)


def test_paths_of_what_is_here(server, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_CACHE", str(tmp_path))
    monkeypatch.setattr(catalogue, "_PUBLIC", (entry(server, "whole"),))
    assert data.cache_folder() == tmp_path
    with pytest.raises(
        InputError, match="the treebank 'toy' is not here at .*nothing there. Fetch it with `attnprobe fetch toy`"
    ):
        data.path("toy")
    file = data.fetch("toy", accept_licence=True)
    assert data.path("toy") == file
    file.write_bytes(b"spoilt")
    with pytest.raises(InputError, match="got another content"):
        data.path("toy")
    monkeypatch.delenv("ATTNPROBE_CACHE")
    assert data.cache_folder().name == "attnprobe"
