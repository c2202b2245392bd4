import hashlib
import os
from pathlib import Path

import pytest

from attnprobe import data
from attnprobe.data import catalogue
from attnprobe.errors import EnvironmentFailure, InputError


def test_entries_say_what_must_be_known():
    entries = data.available()
    assert [entry.name for entry in entries][:1] == ["bundled"]
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries[1:]:
        assert entry.url.startswith("https://")
        assert entry.filename.endswith(".conllu")
        assert entry.licence.startswith("CC BY")
        assert (entry.sha256 is None) == (entry.size is None)
        assert entry.sha256 is None or len(entry.sha256) == 64


def test_unknown_names_list_the_near_ones():
    for ask in (data.treebank, data.path, data.fetch):
        with pytest.raises(InputError, match="unknown treebank 'ud-ewtt': got near names: ud-ewt"):
            ask("ud-ewtt")


def test_the_bundled_treebank_needs_no_fetching(tmp_path, monkeypatch):
    file = tmp_path / "a.conllu"
    monkeypatch.setattr(catalogue, "BUNDLED_FILE", file)
    for ask in (data.path, data.fetch):
        with pytest.raises(
            EnvironmentFailure, match="the bundled treebank is missing at .*a.conllu. Install attnprobe again"
        ):
            ask("bundled")
    file.write_text("x" * 17)
    assert data.path("bundled") == data.fetch("bundled") == file
    assert data.available()[0].size == 17


@pytest.mark.shared
@pytest.mark.parametrize("entry", [entry for entry in data.available() if entry.sha256], ids=lambda entry: entry.name)
def test_checksums_are_those_of_the_files(entry):
    folder = os.environ.get("ATTNPROBE_SHARED_DATA")
    if not folder:
        pytest.skip("ATTNPROBE_SHARED_DATA names no folder of public data")
    [file] = Path(folder).glob(f"ud/*/{entry.filename}")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == entry.sha256
    assert file.stat().st_size == entry.size
    assert (file.parent / "COMMIT").read_text().strip() in entry.url
