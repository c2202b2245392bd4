"""What befalls a long run from outside: Ctrl-C, a full disk, a read-only folder, a second run. Real processes, real file systems."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from attnprobe import open_study, read_conllu, run
from attnprobe.data import path
from tests.test_checkpoint import same

CHOSEN = {"metrics": ["entropy", "offset_mass"], "relations": ["dep:det", "udep:nsubj"]}


def command(out, *more, sentences=60):
    return [
        *(
            sys.executable,
            "-m",
            "attnprobe",
            "heads",
            "minilm",
            "--out",
            str(out),
            "--shard-sentences",
            "12",
            "--quiet",
        ),
        *("--max-sentences", str(sentences)),
        *("--metrics", ",".join(CHOSEN["metrics"]), "--relations", ",".join(CHOSEN["relations"]), *more),
    ]


def folder_of(out):
    return out.with_name(out.name + ".parts")


def finished(out):
    return list(folder_of(out).glob("*.npz"))


def wait_for(happened, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not happened() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert happened(), process.communicate()


def interrupted(process):
    """Send Ctrl-C; what the process says, its code, and the seconds it took."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    return told, process.returncode, time.monotonic() - began


def test_ctrl_c_stops_and_says_how_to_go_on(minilm_sdpa, tmp_path):
    out = tmp_path / "s.nc"
    process = subprocess.Popen(command(out, sentences=700), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: finished(out), process)
    told, code, _ = interrupted(process)
    assert code == 130
    assert told.strip() == (
        "interrupted; with --out of `heads` or `probe`, or --study of `report`, go on with the same command and --resume"
    )
    assert finished(out)
    assert not out.exists()


LOST = """
import os, signal, sys, time
from attnprobe import cli

class Destroyed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

@cli.app.command()
def work():
    thing = Destroyed()
    del thing
    time.sleep(30)
    print("worked to the end")

sys.argv = ["attnprobe", "work"]
cli.main()
"""


def test_ctrl_c_within_a_destructor_is_not_lost():
    """Python drops what is raised there, and goes on."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, (done.stdout, done.stderr)
    assert done.stderr.startswith("interrupted; ")
    assert not done.stdout


AGAIN = """
import os, signal, sys
from attnprobe import cli

class Telling:
    \"\"\"Standard error on which Ctrl-C is pressed once more at each line.\"\"\"
    def write(self, text):
        sys.__stderr__.write(text)
        os.kill(os.getpid(), signal.SIGINT)
    def flush(self):
        sys.__stderr__.flush()

class Freed:
    def __del__(self):  # while the frames of the command are let go
        os.kill(os.getpid(), signal.SIGINT)

@cli.app.command()
def work():
    held = Freed()
    sys.stderr = Telling()
    exec("os.kill(os.getpid(), signal.SIGINT)")  # Python notes what leaves a text that is run

sys.argv = ["attnprobe", "work"]
cli.main()
"""


def test_ctrl_c_again_and_again_changes_nothing(tmp_path):
    """While the first is being told, while what the command held is let go, and when all is told."""
    (tmp_path / "again.py").write_text(AGAIN)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parent.parent}"}
    started = [sys.executable, "-m", "again"]
    done = subprocess.run(started, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 130, (done.stdout, done.stderr)
    assert done.stderr.startswith("interrupted; ")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_while_the_command_line_is_imported_is_quiet(tmp_path):
    """By the console script's entry and by `python -m`: stopped at the import of typer, the first long one."""
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)")
    root = Path(__file__).parent.parent
    entry = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]["attnprobe"]
    module, function = entry.split(":")
    script = f"import sys\nfrom {module} import {function}\nsys.exit({function}())"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    for started in (["-c", script], ["-m", "attnprobe", "--help"]):
        done = subprocess.run([sys.executable, *started], capture_output=True, text=True, env=environment, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_ctrl_c_at_any_moment(tmp_path):
    chance = random.Random(11)
    for number in range(12):
        out = tmp_path / f"{number}.nc"
        process = subprocess.Popen(command(out), stderr=subprocess.PIPE, text=True)
        time.sleep(1 + 8 * chance.random())
        told, code, seconds = interrupted(process)
        print(f"{seconds:.2f} s, exit {code}, {len(finished(out))} shards: {told.strip()[:60]}")  # noqa: T201
        assert (
            code == 130 or out.exists() or (code == -signal.SIGINT and not folder_of(out).exists())
        )  # Python itself starting
        assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.parametrize("when", [0.0, 6.0])
def test_ctrl_c_reaches_the_workers_too(tmp_path, when):
    """As a terminal does it: to the whole group of processes, while workers start and while they work."""
    pytest.importorskip("ray")
    out = tmp_path / "s.nc"
    more = ("--engine", "ray", "--workers", "2")
    process = subprocess.Popen(
        command(out, *more, sentences=700), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: (tmp_path / "s.nc.parts").exists(), process)
    time.sleep(when)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    print(f"{time.monotonic() - began:.2f} s")  # noqa: T201
    assert process.returncode == 130
    assert "--resume" in told
    assert "Traceback" not in told


def test_a_disk_that_takes_no_more_gives_exit_3(minilm_sdpa, tmp_path):
    """The kernel refuses to write beyond 100 kB, in the middle of a shard."""
    out = tmp_path / "s.nc"

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(command(out), capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 3
    assert "cannot save a checkpoint at" in done.stderr
    assert "Free some space and run again with --resume" in done.stderr
    assert sorted(p.name for p in (tmp_path / "s.nc.parts").iterdir()) == ["key", "lock"]


@pytest.fixture
def disk(tmp_path):
    """Mounts a file system of a few kilobytes: a function that sets its size, or makes it read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not allowed here")

    def remount(options: str) -> Path:
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)
        return folder

    yield remount
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_at_each_shard(minilm_sdpa, disk, tmp_path):
    """Full at the first shard, the second, the fourth: exit 3 each time, and what was finished before is kept."""
    process = subprocess.Popen(command(tmp_path / "sizes.nc", sentences=700), stderr=subprocess.DEVNULL)
    wait_for(lambda: finished(tmp_path / "sizes.nc"), process)
    process.kill()
    process.wait()
    shard = finished(tmp_path / "sizes.nc")[0].stat().st_size
    out = disk("size=64k") / "s.nc"
    for size, kept in (("64k", 0), (f"{int(1.5 * shard) // 1024}k", 1), (f"{int(3.5 * shard) // 1024}k", 3)):
        disk(f"size={size}")
        done = subprocess.run(command(out, "--resume"), capture_output=True, text=True)
        assert done.returncode == 3, done.stderr
        assert "No space left" in done.stderr
        assert len(finished(out)) == kept
    disk("size=1g")
    done = subprocess.run(command(out, "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same(
        open_study(out),
        run(minilm_sdpa, read_conllu(path("bundled")), max_sentences=60, shard_sentences=12, **CHOSEN),
    )


@pytest.mark.slow
def test_a_disk_full_when_the_study_is_written(minilm_sdpa, disk, tmp_path):
    """All shards fit, the study does not: exit 3, and with space again the shards are not measured once more."""
    out = disk("size=1g") / "s.nc"
    wanted = run(minilm_sdpa, read_conllu(path("bundled")), max_sentences=60, shard_sentences=12, **CHOSEN)
    sentences = command(out)
    begun = subprocess.Popen(sentences, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(finished(out)) >= 5, begun)
    begun.kill()
    begun.communicate()
    used = sum(p.stat().st_size for p in finished(out))
    disk(f"size={used * 6 // 5 // 1024 + 24}k")
    done = subprocess.run([*sentences, "--resume"], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert not out.exists()
    assert len(finished(out)) >= 5
    assert [p.name for p in out.parent.iterdir()] == ["s.nc.parts"]
    disk("size=1g")
    done = subprocess.run([*sentences, "--resume"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same(open_study(out), wanted)


@pytest.mark.slow
def test_a_read_only_folder_gives_exit_3_before_anything_runs(disk):
    out = disk("ro") / "s.nc"
    done = subprocess.run(command(out), capture_output=True, text=True)
    assert done.returncode == 3
    assert "is read-only" in done.stderr
    disk("rw")


@pytest.mark.slow
def test_a_second_run_at_the_same_time_gives_exit_2_and_harms_nothing(minilm_sdpa, tmp_path):
    out = tmp_path / "s.nc"
    first = subprocess.Popen(command(out), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (tmp_path / "s.nc.parts").exists(), first)
    os.kill(first.pid, signal.SIGSTOP)
    second = subprocess.run(command(out, "--resume"), capture_output=True, text=True)
    os.kill(first.pid, signal.SIGCONT)
    assert second.returncode == 2
    assert "another run is writing the same result" in second.stderr
    _, told = first.communicate()
    assert first.returncode == 0, told
    same(
        open_study(out),
        run(minilm_sdpa, read_conllu(path("bundled")), max_sentences=60, shard_sentences=12, **CHOSEN),
    )
