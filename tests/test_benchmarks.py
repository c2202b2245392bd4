"""Benchmarks refuse what they cannot measure in words, as the command line does."""

import subprocess
import sys
from pathlib import Path

import pytest

from attnprobe.data import path

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("what", ["fit", pytest.param("heads", marks=pytest.mark.slow)])
def test_probes_of_too_few_words_are_refused(what):
    asked = [sys.executable, "benchmarks/probes.py", what, str(path("bundled")), "--words", "60", "--rounds", "1"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Here: take more words (--words)." in done.stderr


@pytest.mark.slow
def test_a_task_that_cannot_be_fitted_is_named(tmp_path):
    """Twelve documents, and nothing in them but nouns."""
    corpus = tmp_path / "nouns.conllu"
    corpus.write_text("".join(f"# newdoc id = d{i}\n1\tDogs\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n" for i in range(12)))
    asked = [sys.executable, "benchmarks/probes.py", "heads", str(corpus)]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "too few words to probe upos: got " in done.stderr
