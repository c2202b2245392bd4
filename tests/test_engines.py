"""Shards on Ray give the bits of the local engine, whatever the number of workers, also after one was killed."""

import numpy as np
import pytest

from attnprobe import read_conllu, run
from attnprobe.data import path
from attnprobe.engines import engine_of
from attnprobe.errors import InputError
from attnprobe.sharding import Fold, measure_shard
from tests.test_checkpoint import same

SMALL = {"max_sentences": 60, "shard_sentences": 12, "examples": 0}


@pytest.fixture(scope="module")
def local(minilm):
    return run(minilm, read_conllu(path("bundled")), **SMALL)


def test_unknown_engines_list_the_near_ones():
    with pytest.raises(InputError, match="unknown engine 'rray'; near names: ray"):
        engine_of("rray")


def test_shards_in_any_order_fold_to_the_same_bits(minilm, local):
    def backwards(model, options, jobs, advance):
        for shard, members in reversed(list(jobs)):
            yield shard.index, measure_shard(model, shard, members, options, advance)

    same(run(minilm, read_conllu(path("bundled")), engine=backwards, **SMALL), local)


def test_a_fold_with_a_gap_is_not_finished():
    fold = Fold()
    with pytest.raises(AssertionError):
        fold.finish()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ray_gives_the_bits_of_the_local_engine(minilm, local, workers):
    pytest.importorskip("ray")
    same(run(minilm, read_conllu(path("bundled")), engine=engine_of("ray", workers=workers), **SMALL), local)


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_nothing_changes(minilm, local, monkeypatch):
    ray = pytest.importorskip("ray")
    from attnprobe import engines

    started, killed = [], []
    honest = engines._Pool._start

    def start(self):
        started.append(honest(self))
        return started[-1]

    def progress(done, _total):
        if done and not killed:
            killed.append(True)
            ray.kill(started[0])

    monkeypatch.setattr(engines._Pool, "_start", start)
    study = run(minilm, read_conllu(path("bundled")), engine=engine_of("ray", workers=2), progress=progress, **SMALL)
    assert killed
    assert len(started) == 3
    same(study, local)
    assert np.isfinite(study["metrics"]["entropy"].values).all()
