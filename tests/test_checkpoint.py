"""Finished shards survive: the same bits after a kill, one run at a time, nothing half-written."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from attnprobe import open_study, read_conllu, run
from attnprobe.checkpoint import Checkpoints, checkpoints
from attnprobe.data import path
from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.heads.tables import RelationSums, ShardSums
from attnprobe.stream import RatioSums

SMALL = {"max_sentences": 60, "shard_sentences": 12, "examples": 0}


def same(a, b):
    """Every variable of every group, bit for bit."""
    assert a.groups == b.groups
    for group in a.groups:
        for name, values in a[group].data_vars.items():
            np.testing.assert_array_equal(b[group][name].values, values.values, err_msg=f"{group}/{name}")


@pytest.fixture(scope="module")
def corpus():
    return read_conllu(path("bundled"))


@pytest.fixture(scope="module")
def unbroken(minilm, corpus):
    return run(minilm, corpus, **SMALL)


def sums(seed):
    generator = np.random.default_rng(seed)

    def ratio(*shape):
        return RatioSums(*(generator.normal(size=shape) for _ in range(6)))

    heads = (2, 1, 2, 3, 5)
    product = generator.normal(size=(*heads, 20))
    one = RelationSums(ratio(*heads), ratio(2, 20), product, np.ones(heads), np.zeros(heads), np.full(2, 0.5))
    return ShardSums({"entropy": ratio(2, 3, 5)}, {"dep:obj": one}, (("encoder", 0, 5), ("cross", 1, 5)), {"left": 3.0})


def test_a_shard_comes_back_bit_for_bit(tmp_path):
    with checkpoints(tmp_path / "s.nc", "key", resume=False) as store:
        assert store.load(0) is None
        store.save(0, sums(3))
        back = store.load(0)
        assert back.modules == sums(3).modules
        assert back.counts == {"left": 3.0}
        np.testing.assert_array_equal(back.metrics["entropy"].y, sums(3).metrics["entropy"].y)
        np.testing.assert_array_equal(back.relations["dep:obj"].product, sums(3).relations["dep:obj"].product)
        assert sorted(p.name for p in store.folder.iterdir()) == ["key", "lock", "shard-000000.npz"]
        store.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_goes_on_and_gives_the_same_bits(minilm, corpus, unbroken, tmp_path, monkeypatch):
    from attnprobe import planning, sharding

    measured = []
    honest = sharding.measure_shard

    def interrupted(model, shard, *rest):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(shard.index)
        return honest(model, shard, *rest)

    monkeypatch.setattr(sharding, "measure_shard", interrupted)
    out = tmp_path / "s.nc"
    with pytest.raises(KeyboardInterrupt):
        run(minilm, corpus, out=out, **SMALL)
    assert not out.exists()
    monkeypatch.setattr(sharding, "measure_shard", lambda *rest: measured.append("again") or honest(*rest))
    same(run(minilm, corpus, out=out, resume=True, **SMALL), unbroken)
    options = planning.Options((), (), max_sentences=60, plan=planning.PlanOptions(window=12))
    shards = len(planning.lay_plan(minilm, corpus, options).kept)
    assert measured.count("again") == shards - 2
    assert [p.name for p in tmp_path.iterdir()] == ["s.nc"]
    same(open_study(out), unbroken)


def test_shards_of_another_run_are_refused(minilm, corpus, tmp_path):
    out = tmp_path / "s.nc"
    with checkpoints(out, "other", resume=False) as store:
        store.save(0, sums(1))
    with pytest.raises(InputError, match="cannot resume.*the same model, corpus and options"):
        run(minilm, corpus, out=out, resume=True, **SMALL)
    run(minilm, corpus, out=out, **SMALL)  # starts again


def test_a_second_run_on_the_same_result_is_refused(tmp_path):
    with (
        checkpoints(tmp_path / "s.nc", "key", resume=False),
        pytest.raises(InputError, match="another run is writing the same result"),
        checkpoints(tmp_path / "s.nc", "key", resume=False),
    ):
        pass


def test_a_broken_checkpoint_says_what_to_do(tmp_path):
    with checkpoints(tmp_path / "s.nc", "key", resume=False) as store:
        (store.folder / "shard-000003.npz").write_bytes(b"PK nothing")
        with pytest.raises(EnvironmentFailure, match=r"shard-000003.npz.*Delete that file and resume"):
            store.load(3)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    with checkpoints(tmp_path / "s.nc", "key", resume=False) as store:
        store.save(0, sums(1))

        def full(stream, **_arrays):
            stream.write(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "savez", full)
        with pytest.raises(EnvironmentFailure, match="No space left.*--resume"):
            store.save(1, sums(2))
        assert sorted(p.name for p in store.folder.iterdir()) == ["key", "lock", "shard-000000.npz"]


def killed_until_done(out, kills, seed):
    """Run the command line, kill it at random moments, resume; returns how many kills hit."""
    command = [
        *(sys.executable, "-m", "attnprobe", "heads", "minilm", "--out", str(out), "--max-sentences", "60"),
        *("--shard-sentences", "12", "--quiet"),
    ]
    chance, hit = random.Random(seed), 0
    for number in range(kills + 1):
        if number == kills:
            done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            break
        process = subprocess.Popen([*command, "--resume"], stderr=subprocess.DEVNULL)
        folder = out.with_name(out.name + ".parts")
        deadline = time.monotonic() + 120
        while not folder.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.8)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            hit += 1
        process.wait()
        if out.exists():
            break
    return hit


@pytest.mark.slow
def test_twenty_random_kills_give_the_same_bits(minilm_sdpa, corpus, tmp_path):
    wanted = run(minilm_sdpa, corpus, max_sentences=60, shard_sentences=12)
    hits = 0
    for seed in range(10):
        out = tmp_path / f"s{seed}.nc"
        hits += killed_until_done(out, 4, seed)
        same(open_study(out), wanted)
        assert not out.with_name(out.name + ".parts").exists()
        if hits >= 20:
            break
    assert hits >= 20


def test_one_kill_gives_the_same_bits(minilm_sdpa, corpus, tmp_path):
    out = tmp_path / "s.nc"
    killed_until_done(out, 1, 7)
    same(open_study(out), run(minilm_sdpa, corpus, max_sentences=60, shard_sentences=12))


def test_the_store_ignores_a_part_left_by_a_kill(tmp_path):
    with checkpoints(tmp_path / "s.nc", "key", resume=False) as store:
        store.save(0, sums(1))
        (store.folder / ".abcd.part").write_bytes(b"half a shard")
    with checkpoints(tmp_path / "s.nc", "key", resume=True) as store:
        assert store.load(0) is not None
        assert isinstance(store, Checkpoints)
        store.remove()
    assert list(tmp_path.iterdir()) == []
