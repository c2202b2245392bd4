"""Vectors and labels made up, and real vectors of a few sentences, for probes to be fitted on."""

import numpy as np
import pytest
import torch

from attnprobe import data, read_conllu
from attnprobe.probes.examples import Clusters, Examples
from attnprobe.registry import ProbeTask
from attnprobe.text.align import encode

HEADS, DIM = 5, 7


@pytest.fixture(scope="session")
def treebank():
    """The bundled treebank."""
    return list(read_conllu(data.path("bundled")))


@pytest.fixture(scope="session")
def some_sentences(treebank):
    """Every third document of it."""
    documents = sorted({sentence.document for sentence in treebank})[::3]
    return [sentence for sentence in treebank if sentence.document in documents]


@pytest.fixture(scope="session")
def real_vectors(minilm_sdpa, some_sentences, tmp_path_factory):
    """Vectors of MiniLM for these sentences."""
    from attnprobe.probes.features import extract

    encoded = list(encode(minilm_sdpa.tokenizer, some_sentences))
    return extract(minilm_sdpa, encoded, tmp_path_factory.mktemp("vectors"), sites=("context", "q"))


def clustered(n, size, seed=3):
    """Clusters of `size` examples, half of them to report on."""
    cluster = np.arange(n) // size
    report = np.random.default_rng(seed).permutation(cluster.max() + 1) % 2 == 0
    return cluster, Clusters(np.arange(len(report)), report)


def examples_of(y, cluster, types=None, name="made up"):
    """Examples whose vectors are rows 0, 1, 2, ...; every example is a word type of its own unless `types` numbers them."""
    types = np.arange(len(y)) if types is None else types
    classes = tuple(f"c{k}" for k in range(int(y.max()) + 1)) if len(y) else ()
    task = ProbeTask(name, lambda sentence: (), "word", "own", "a test")
    names = tuple(f"t{i}" for i in range(int(types.max()) + 1)) if len(y) else ()
    return Examples(task, np.arange(len(y)), y, classes, cluster, types, names, 0)


def noise(n, heads=HEADS, dim=DIM, seed=5):
    """Vectors that tell nothing, [row head dim]."""
    return torch.randn(n, heads, dim, generator=torch.Generator().manual_seed(seed)).numpy()
