"""Shards on Ray give the bits of the local engine, whatever the number of workers, also after one was killed.

Whatever starts Ray is slow: Ray gives itself 30 seconds to start, which a busy machine does not always keep.
"""

import socket
import sys

import numpy as np
import pytest
import torch

from attnprobe import engines, read_conllu, run
from attnprobe.data import path
from attnprobe.engines import engine_of
from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.models.load import load
from attnprobe.planning import Options, lay_plan
from attnprobe.sharding import Fold, measure_shard
from tests.test_checkpoint import same
from tests.tiny import build, byte_tokenizer

SMALL = {"max_sentences": 60, "shard_sentences": 12, "examples": 0}
CHOSEN = {"metrics": ["entropy", "offset_mass"], "relations": ["dep:det", "udep:nsubj"]}


@pytest.fixture(scope="module")
def local(minilm):
    return run(minilm, read_conllu(path("bundled")), **SMALL)


@pytest.fixture(scope="module")
def small():
    """A tiny model: what is tested is who measures, not what."""
    return load((build("bert", max_position_embeddings=307), byte_tokenizer(max_length=307)))


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, shared by the tests of this file."""
    ray = pytest.importorskip("ray")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, log_to_driver=False)
    yield ray
    ray.shutdown()
    torch.set_num_threads(threads)


def test_unknown_engines_list_the_near_ones():
    with pytest.raises(InputError, match="unknown engine 'rray'; near names: ray"):
        engine_of("rray")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 2}, "got --workers"),
        ({"address": "auto"}, "got --address"),
        ({"gpus_per_worker": 0.5, "workers": 1}, "got --workers and --gpus-per-worker"),
    ],
)
def test_the_local_engine_takes_no_options(options, told):
    with pytest.raises(InputError, match=f"local runs in this process alone: {told}. Give --engine ray"):
        engine_of("local", **options)


def test_ray_is_told_to_be_missing_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="the engine ray is not installed.*pip install"):
        engine_of("ray", device=torch.device("cpu"))


def test_gpus_that_do_not_go_with_the_device_are_told_before_anything_runs():
    with pytest.raises(InputError, match="a model on cpu and 2 GPUs a worker.*--device cuda and --gpus-per-worker"):
        engine_of("ray", gpus_per_worker=2, device=torch.device("cpu"))
    with pytest.raises(InputError, match="a model on cuda and 0 GPUs a worker"):
        engine_of("ray", device=torch.device("cuda"))


def test_an_address_where_nothing_answers_is_given_up(monkeypatch):
    """A port that takes connections and says nothing; Ray itself would wait for minutes."""
    pytest.importorskip("ray")
    monkeypatch.setattr(engines, "ANSWER", 1.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        told = (
            rf"no Ray cluster answers at {address}: expected an answer within 1.5 s, got none. .*`ray status`.*firewall"
        )
        with pytest.raises(EnvironmentFailure, match=told):
            engines._connect(engines._ray(), address, None)


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
def test_two_workers_give_the_bits_of_the_local_engine(small, cluster, tmp_path):
    corpus = read_conllu(path("bundled"))
    wanted = run(small, corpus, **SMALL, **CHOSEN)
    told = []
    found = run(
        small,
        corpus,
        engine=engine_of("ray", workers=2),
        out=tmp_path / "s.nc",
        progress=lambda *done: told.append(done),
        **SMALL,
        **CHOSEN,
    )
    same(found, wanted)
    assert told[-1] == (60, 60)


@pytest.mark.slow
def test_a_machine_with_other_versions_is_refused(small, cluster, monkeypatch):
    honest = engines._machine()
    monkeypatch.setattr(engines, "_machine", lambda: {**honest, "torch": "1.0"})
    with pytest.raises(EnvironmentFailure, match=r"other versions: expected torch 1.0, got torch 2.* Install the same"):
        run(small, read_conllu(path("bundled")), engine=engine_of("ray", workers=1), **SMALL, **CHOSEN)
    monkeypatch.setattr(engines, "_machine", lambda: {**honest, "kind of CPU": "ABACUS"})
    with pytest.warns(UserWarning, match="another kind of CPU .*here ABACUS.*about 1e-6"):
        run(small, read_conllu(path("bundled")), engine=engine_of("ray", workers=1), **SMALL, **CHOSEN)


@pytest.mark.slow
def test_an_error_of_ours_in_a_worker_is_raised_as_it_was(small, cluster):
    options = Options(("entropy",), ())
    jobs = iter(lay_plan(small, list(read_conllu(path("bundled")))[:3], options).kept)
    wrong = Options(("entrpy",), ())
    with pytest.raises(InputError, match="^unknown head metric 'entrpy'; near names: entropy"):
        list(engine_of("ray", workers=1)(small, wrong, jobs, lambda n: None))


@pytest.mark.slow
def test_a_cluster_without_room_is_told(small, cluster, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    with pytest.raises(EnvironmentFailure, match="no room for a worker: expected 64 CPUs.*OMP_NUM_THREADS=1"):
        list(engine_of("ray")(small, Options(("entropy",), ()), iter(()), lambda n: None))


@pytest.mark.slow
def test_workers_with_a_gpu_need_a_model_on_one(small, cluster):
    with pytest.raises(InputError, match="a model on cpu and 1 GPUs a worker.*--device cuda and --gpus-per-worker"):
        list(engine_of("ray", gpus_per_worker=1.0)(small, Options(("entropy",), ()), iter(()), lambda n: None))


@pytest.mark.slow
def test_workers_that_never_start_are_told(small, cluster, monkeypatch):
    monkeypatch.setattr(engines, "PATIENCE", 0.01)
    with pytest.raises(EnvironmentFailure, match="no Ray worker has started: expected one within 0.01 s"):
        run(small, read_conllu(path("bundled")), engine=engine_of("ray", workers=1), **SMALL, **CHOSEN)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ray_gives_the_bits_of_the_local_engine(minilm, local, cluster, workers):
    same(run(minilm, read_conllu(path("bundled")), engine=engine_of("ray", workers=workers), **SMALL), local)


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_nothing_changes(minilm, local, cluster, monkeypatch):
    workers, starts, killed = [], [], []
    honest_start, honest_started = engines._Pool._start, engines._Pool._started

    def start(self):
        starts.append(True)
        honest_start(self)

    def started(self, ready):
        found = honest_started(self, ready)
        workers.extend(found)
        return found

    def progress(done, _total):
        if done and not killed:
            killed.append(True)
            cluster.kill(workers[0])

    monkeypatch.setattr(engines._Pool, "_start", start)
    monkeypatch.setattr(engines._Pool, "_started", started)
    study = run(minilm, read_conllu(path("bundled")), engine=engine_of("ray", workers=2), progress=progress, **SMALL)
    assert killed
    assert len(starts) == 3
    same(study, local)
    assert np.isfinite(study["metrics"]["entropy"].values).all()


@pytest.mark.slow
def test_a_shard_that_kills_every_worker_ends_the_run(small, cluster, monkeypatch):
    def progress(_done, _total):
        raise AssertionError("no shard can be done")

    class Deadly(int):
        """Kills the process that measures with it."""

        def __reduce__(self):
            return _die, ()

    planned = lay_plan(small, list(read_conllu(path("bundled")))[:3], Options(("entropy",), ()))
    [(shard, members)] = planned.kept
    with pytest.raises(EnvironmentFailure, match=r"shard 0 lost its worker 3 times.*--resume"):
        list(
            engine_of("ray", workers=1)(
                small, Options(("entropy",), ()), iter([(shard, (*members, Deadly()))]), progress
            )
        )


def _die():
    import os

    os._exit(1)


@pytest.mark.slow
def test_a_machine_lost_for_good_holds_nothing_up(minilm, local):
    """Two machines (of one CPU each, as Ray sees them), one of which goes: what it had in hand is done by the other."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    lost = []

    def progress(done, _total):
        if done and not lost:
            lost.append(True)
            machines.remove_node(second, allow_graceful=False)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        second = machines.add_node(num_cpus=1)
        engine = engine_of("ray", address=machines.address, workers=2)
        same(run(minilm, read_conllu(path("bundled")), engine=engine, progress=progress, **SMALL), local)
        assert lost
    finally:
        torch.set_num_threads(threads)
        machines.shutdown()
