"""Finished shards survive: the same bits after a kill, one run at a time, nothing half-written."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from attnprobe import open_study, read_conllu, run
from attnprobe.checkpoint import Checkpoints, alone, checkpoints
from attnprobe.data import path
from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.heads.tables import RelationSums, ShardSums
from attnprobe.models.load import load
from attnprobe.stream import RatioSums
from tests.tiny import build, byte_tokenizer

SMALL = {
    **{"max_sentences": 60, "shard_sentences": 12, "examples": 0},
    **{"metrics": ["entropy", "offset_mass"], "relations": ["dep:det", "udep:nsubj"]},
}


def same(a, b):
    """Every variable and coordinate of every group, bit for bit, and what is told beside them."""
    assert a.groups == b.groups
    for group in a.groups:
        assert set(a[group].variables) == set(b[group].variables), group
        for name, values in a[group].variables.items():
            one, other = values.values, b[group][name].values
            where = f"{group}/{name}"
            np.testing.assert_array_equal(other, one, err_msg=where)
            assert one.dtype.kind in "OUT" or (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), where
        one, other = ({name: np.asarray(value).tolist() for name, value in s[group].attrs.items()} for s in (a, b))
        assert repr(one) == repr(other), group


@pytest.fixture(scope="module")
def model():
    """Small, so that a run takes a moment; the runs that are killed below use the embedded BERT."""
    return load((build("bert", max_position_embeddings=307), byte_tokenizer(max_length=307)))


@pytest.fixture(scope="module")
def corpus():
    return read_conllu(path("bundled"))


@pytest.fixture(scope="module")
def unbroken(model, corpus):
    return run(model, corpus, **SMALL)


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


def test_an_interrupted_run_goes_on_and_gives_the_same_bits(model, corpus, unbroken, tmp_path, monkeypatch):
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
        run(model, corpus, out=out, **SMALL)
    assert not out.exists()
    monkeypatch.setattr(sharding, "measure_shard", lambda *rest: measured.append("again") or honest(*rest))
    same(run(model, corpus, out=out, resume=True, **SMALL), unbroken)
    options = planning.Options((), (), max_sentences=60, plan=planning.PlanOptions(window=12))
    shards = len(planning.lay_plan(model, corpus, options).kept)
    assert measured.count("again") == shards - 2
    assert [p.name for p in tmp_path.iterdir()] == ["s.nc"]
    same(open_study(out), unbroken)


def test_shards_of_another_run_are_refused(model, corpus, tmp_path):
    out = tmp_path / "s.nc"
    with checkpoints(out, "other", resume=False) as store:
        store.save(0, sums(1))
    with pytest.raises(InputError, match="cannot resume.*the same model, corpus and options"):
        run(model, corpus, out=out, resume=True, **SMALL)
    run(model, corpus, out=out, **SMALL)  # starts again


def test_a_second_run_on_the_same_result_is_refused(tmp_path):
    with (
        checkpoints(tmp_path / "s.nc", "key", resume=False),
        pytest.raises(InputError, match="another run is writing the same result"),
        checkpoints(tmp_path / "s.nc", "key", resume=False),
    ):
        pass


def test_a_refused_run_leaves_nothing_behind_but_what_was_finished(tmp_path):
    out = tmp_path / "s.nc"

    def refuse():
        raise InputError("cannot be probed")

    with pytest.raises(InputError), checkpoints(out, "key", resume=False):
        refuse()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError), checkpoints(out, "key", resume=False) as store:
        store.save(0, sums(0))
        refuse()
    assert (tmp_path / "s.nc.parts" / "shard-000000.npz").is_file()


def test_a_lock_alone_leaves_nothing_behind_but_what_was_there(tmp_path):
    out = tmp_path / "s.nc"
    with alone(out):
        assert [path.name for path in tmp_path.iterdir()] == ["s.nc.parts"]
    assert not list(tmp_path.iterdir())
    with checkpoints(out, "heads", resume=False):
        pass
    with alone(out):
        pass
    assert (tmp_path / "s.nc.parts" / "key").read_text() == "heads"


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    import fcntl

    def without(*_rest):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    with (
        pytest.warns(UserWarning, match="cannot lock .No locks available.*would not be noticed"),
        checkpoints(tmp_path / "s.nc", "key", resume=False) as store,
    ):
        store.save(0, sums(1))


def test_a_damaged_checkpoint_is_told_and_measured_again(tmp_path):
    """Cut anywhere, or with a byte changed anywhere in it: never other numbers, never a crash."""
    with checkpoints(tmp_path / "s.nc", "key", resume=False) as store:
        store.save(3, sums(3))
        path = store.folder / "shard-000003.npz"
        whole = path.read_bytes()
        places = random.Random(5).sample(range(len(whole)), 40)
        flags = whole.index(b"PK\x01\x02") + 8
        said_to_be_encrypted = whole[:flags] + b"\1" + whole[flags + 1 :]
        for damaged in (b"", b"PK nothing", said_to_be_encrypted, *(whole[:place] for place in places[:20])):
            path.write_bytes(damaged)
            with pytest.warns(UserWarning, match="a checkpoint is damaged at .*shard-000003.npz.*measured again"):
                assert store.load(3) is None
        for place in places:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = store.load(3)
            assert found is None or (pickle.dumps(found) == pickle.dumps(sums(3)))


def test_a_run_with_a_damaged_checkpoint_gives_the_same_bits(model, corpus, unbroken, tmp_path, monkeypatch):
    out = tmp_path / "s.nc"
    _stop_after(2, model, corpus, out, monkeypatch)
    shard = tmp_path / "s.nc.parts" / "shard-000001.npz"
    shard.write_bytes(shard.read_bytes()[:-4321])
    with pytest.warns(UserWarning, match="a checkpoint is damaged"):
        same(run(model, corpus, out=out, resume=True, **SMALL), unbroken)


def _stop_after(n, model, corpus, out, monkeypatch, **changes):
    """Run until `n` shards are measured, then stop as Ctrl-C does."""
    from attnprobe import sharding

    honest, left = sharding.measure_shard, [n]

    def interrupted(*rest):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return honest(*rest)

    with monkeypatch.context() as patch:
        patch.setattr(sharding, "measure_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(model, corpus, out=out, **{**SMALL, **changes})


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_shards_replaced_by_their_sum_give_the_same_bits(model, corpus, unbroken, tmp_path, monkeypatch, stop):
    from attnprobe import sharding

    monkeypatch.setattr(sharding, "FOLDED", 2)
    out = tmp_path / "s.nc"
    _stop_after(stop, model, corpus, out, monkeypatch)
    kept = sorted(p.name for p in (tmp_path / "s.nc.parts").glob("*.npz"))
    whole = stop // 2 * 2
    sum_of = [f"total-{whole:06d}.npz"] if whole else []
    assert kept == [*(f"shard-{i:06d}.npz" for i in range(whole, stop)), *sum_of]
    told = []
    same(run(model, corpus, out=out, resume=True, progress=lambda *done: told.append(done), **SMALL), unbroken)
    assert told[-1] == (60, 60)


def test_a_damaged_sum_is_measured_again(model, corpus, unbroken, tmp_path, monkeypatch):
    from attnprobe import sharding

    monkeypatch.setattr(sharding, "FOLDED", 2)
    out = tmp_path / "s.nc"
    _stop_after(3, model, corpus, out, monkeypatch)
    (tmp_path / "s.nc.parts" / "total-000002.npz").write_bytes(b"PK\x03\x04")
    with pytest.warns(UserWarning, match=r"damaged at .*total-000002.npz"):
        same(run(model, corpus, out=out, resume=True, **SMALL), unbroken)


def test_shards_that_must_wait_are_left_on_disk(tmp_path, monkeypatch):
    from attnprobe import sharding

    monkeypatch.setattr(sharding, "FOLDED", 2)
    with checkpoints(tmp_path / "s.nc", "key", resume=False) as store:
        fold, plain = sharding.Fold(None, store), sharding.Fold()
        for index in (4, 3, 2, 1):
            store.save(index, sums(index))
            fold.add(index, sums(index))
        assert [found is None for found in fold._waiting.values()] == [False, False, True, True]
        (store.folder / "shard-000002.npz").rename(store.folder / "away")
        store.save(0, sums(0))
        with pytest.raises(EnvironmentFailure, match="shard 2 was finished but cannot be read back"):
            fold.add(0, sums(0))
        (store.folder / "away").rename(store.folder / "shard-000002.npz")
        again = sharding.Fold(None, store)
        for index in (3, 4, 2) if again.start else (3, 4, 2, 1, 0):
            again.add(index, sums(index))
        for index in range(5):
            plain.add(index, sums(index))
        assert pickle.dumps(again.finish()) == pickle.dumps(plain.finish())


def test_groups_of_clusters_need_every_shard(model, corpus, tmp_path, monkeypatch):
    """Totals by group are told each shard: nothing is replaced by a sum then."""
    from attnprobe import sharding

    monkeypatch.setattr(sharding, "FOLDED", 2)
    wanted = run(model, corpus, totals=True, **SMALL)
    out = tmp_path / "s.nc"
    _stop_after(3, model, corpus, out, monkeypatch, totals=True)
    assert len(list((tmp_path / "s.nc.parts").glob("shard-*.npz"))) == 3
    same(run(model, corpus, out=out, resume=True, totals=True, **SMALL), wanted)


def test_other_options_are_refused_by_name(model, corpus, tmp_path, monkeypatch):
    out = tmp_path / "s.nc"
    _stop_after(1, model, corpus, out, monkeypatch)
    for changes, told in (
        ({"max_sentences": 59}, "got plan.max_sentences was 60, is 59. Run"),
        (
            {"seed": 3, "sinks": "both"},
            "got plan.metrics was .*hidden_mass.*; plan.sinks was kept, is both; plan.seed was 0, is 3. Run",
        ),
        ({"totals": True}, "got totals was False, is True. Run"),
        ({"totals": True, "shard_sentences": 50}, "got totals was False, is True. Run"),
        ({"batch_tokens": 999}, "got plan.plan.batch_tokens was 2048, is 999. Run"),
    ):
        with pytest.raises(InputError, match=f"cannot resume.*{told}"):
            run(model, corpus, out=out, resume=True, **{**SMALL, **changes})
    monkeypatch.setattr("attnprobe.__version__", "9.9")
    with pytest.raises(InputError, match=r"got versions.attnprobe was .*, is 9.9. Run"):
        run(model, corpus, out=out, resume=True, **SMALL)


def test_a_corpus_changed_in_between_is_refused(model, corpus, tmp_path, monkeypatch):
    """A head moved, no word changed: the batch plan is the same, the scores would not be."""
    sentences = list(corpus)[:60]
    out = tmp_path / "s.nc"
    _stop_after(1, model, sentences, out, monkeypatch)
    place = next(i for i, one in enumerate(sentences) if one.deprels[:1] == ("det",))
    sentences[place] = replace(sentences[place], deprels=("nmod", *sentences[place].deprels[1:]))
    with pytest.raises(InputError, match="cannot resume.*got corpus_sha256 was"):
        run(model, sentences, out=out, resume=True, **SMALL)


def test_what_a_kill_left_of_the_result_is_swept_up(tmp_path):
    (tmp_path / ".s.nc.12345678.part").write_bytes(b"half a study")
    (tmp_path / ".t.nc.12345678.part").write_bytes(b"of another")
    with checkpoints(tmp_path / "s.nc", "key", resume=True) as store:
        store.remove()
    assert [p.name for p in tmp_path.iterdir()] == [".t.nc.12345678.part"]


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(EnvironmentFailure, match="cannot keep checkpoints at .*s.nc.parts: got Not a directory"),
        checkpoints(tmp_path / "file" / "s.nc", "key", resume=False),
    ):
        pass


def test_an_error_of_the_run_is_not_taken_for_one_of_the_store(tmp_path):
    with pytest.raises(PermissionError, match="mine"), checkpoints(tmp_path / "s.nc", "key", resume=False):
        raise PermissionError("mine")


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
