"""Running shards elsewhere: on Ray, one machine or many, with the same bits as in this process.

A worker loads the model once and measures whole shards; what comes back are sums, folded by `study` in the order of the plan. So neither the
number of workers nor who was faster changes a number, as long as every worker runs on the same kind of CPU with the same number of threads.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

import attnprobe
from attnprobe.errors import AttnprobeError, EnvironmentFailure, InputError, explain, near_names
from attnprobe.heads.tables import ShardSums
from attnprobe.models.load import Model
from attnprobe.planning import Job, Options
from attnprobe.sharding import Advance, Engine, in_process, measure_shard

ENGINES = ("local", "ray")
TRIES = 3
"""Times a shard is tried before the run gives up: workers die, and a shard that kills every worker must not go round for ever."""

PATIENCE = 600
"""Seconds to wait for a first worker, or for another when all are gone: large clusters start machines on demand."""

ANSWER = 30
"""Seconds that a cluster has to answer at its address."""


def engine_of(
    name: str,
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float = 0.0,
    device: torch.device | None = None,
) -> Engine:
    """The engine of that name: `local` (this process), which takes no options, or `ray`.

    With `device`, where the model will be, a number of GPUs that does not go with it is refused at once, not when the run begins.
    """
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; {near_names(name, ENGINES)}.")
    if name == "local":
        given = {"--address": address, "--workers": workers, "--gpus-per-worker": gpus_per_worker or None}
        refused = " and ".join(option for option, value in given.items() if value is not None)
        if refused:
            remedy = "Give --engine ray as well, or leave it out"
            raise InputError(explain("the engine local runs in this process alone", got=refused, remedy=remedy))
        return in_process
    if device is not None:
        _refuse_other_device(device, gpus_per_worker)
    return ray_engine(address=address, workers=workers, gpus_per_worker=gpus_per_worker)


def ray_engine(*, address: str | None = None, workers: int | None = None, gpus_per_worker: float = 0.0) -> Engine:
    """Shards on Ray actors: `workers` of them (by default as many as the cluster has CPUs for, or shares of its GPUs).

    `address` is a running cluster's, such as `auto`; None starts one on this machine for the run. Each worker takes as many CPUs as this
    process has threads, and computes with as many. A shard whose worker dies is run again by another, up to three times; a worker that cannot
    be had (its machine is gone) holds nothing up. Raises `InputError` where Ray is not installed; the engine raises `EnvironmentFailure` where
    the cluster cannot be had, its workers run other versions, or a shard fails every time.
    """
    ray = _ray()

    def run(model: Model, options: Options, jobs: Iterator[Job], advance: Advance) -> Iterator[tuple[int, ShardSums]]:
        started = not ray.is_initialized()
        _refuse_other_device(model.device, gpus_per_worker)
        if started:
            _connect(ray, address, workers)
        try:
            yield from _Pool(ray, model, options, workers, gpus_per_worker).run(jobs, advance)
        finally:
            if started:
                ray.shutdown()

    return run


def _refuse_other_device(device: torch.device, gpus: float) -> None:
    if bool(gpus) != (device.type != "cpu"):
        remedy = "Give --device cuda and --gpus-per-worker together: the study says what it was measured on"
        got = f"a model on {device.type} and {gpus:g} GPUs a worker"
        raise InputError(explain("cannot share shards out", got=got, remedy=remedy))


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError(
            explain(
                "the engine ray is not installed", remedy="Run `pip install 'attnprobe[ray]'`, or use --engine local"
            )
        ) from None
    return ray


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    here: dict[str, Any] = {"include_dashboard": False, "configure_logging": False}
    if workers is not None:
        here["num_cpus"] = workers * torch.get_num_threads()
    if address is not None:
        _refuse_silent(address)
    try:
        ray.init(address=address, log_to_driver=False, **(here if address is None else {}))
    except Exception as error:
        raise EnvironmentFailure(
            explain("cannot reach a Ray cluster", where=address or "this machine", got=_first_line(error))
        ) from error


def _refuse_silent(address: str) -> None:
    """Raise where no cluster answers in time. Asked in another process, which can be stopped: Ray itself waits for minutes."""
    asked = [sys.executable, "-c", "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)", address]
    try:
        subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER)
    except subprocess.TimeoutExpired as error:
        remedy = "Does it run (`ray status` on its head), is this its port (6379 unless told), and does a firewall let it through?"
        what, expected = "no Ray cluster answers", f"an answer within {ANSWER} s"
        raise EnvironmentFailure(explain(what, where=address, expected=expected, got="none", remedy=remedy)) from error


def on_cpu(module: nn.Module) -> nn.Module:
    """The module with its weights on the CPU, as it is sent: a worker may know its GPU by another number. The caller's stays where it is."""
    if all(weight.device.type == "cpu" for weight in module.parameters()):
        return module
    moved: dict[int, Any] = {id(value): value.detach().cpu() for value in module.buffers()}
    for weight in module.parameters():
        moved[id(weight)] = nn.Parameter(weight.detach().cpu(), requires_grad=weight.requires_grad)
    return copy.deepcopy(module, moved)


class _Worker:
    """Lives in its own process: holds the model, measures shards."""

    def __init__(self, model: Model, options: Options, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        model.module.to(device)
        self.model = model
        self.options = options

    def machine(self) -> dict[str, str]:
        return _machine()

    def measure(self, job: Job) -> ShardSums:
        return measure_shard(self.model, *job, self.options)


def _machine() -> dict[str, str]:
    """What the bits of a result depend on, of the process that asks."""
    versions = {name: version(name) for name in ("torch", "transformers", "numpy")}
    return {"attnprobe": attnprobe.__version__, **versions, _CPU: torch.backends.cpu.get_cpu_capability()}


_CPU = "kind of CPU"


class _Pool:
    """Actors with one shard each in hand, those that are starting, and the shards that are under way."""

    def __init__(self, ray: Any, model: Model, options: Options, workers: int | None, gpus: float) -> None:
        self.ray = ray
        available = ray.cluster_resources()
        threads = torch.get_num_threads()
        most = int(available.get("GPU", 0) / gpus) if gpus else int(available.get("CPU", 1)) // threads
        self.size = min(workers or most, most)
        if self.size < 1:
            expected = f"{gpus} GPUs" if gpus else f"{threads} CPUs, one a thread of this process"
            remedy = "" if gpus else "Set OMP_NUM_THREADS=1 for workers of one CPU"
            what = "the Ray cluster has no room for a worker"
            raise EnvironmentFailure(explain(what, expected=expected, got=_told(available), remedy=remedy))
        self._shared = ray.put(type(model)(on_cpu(model.module), model.tokenizer, model.name, model.head, model.source))
        self._actor = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(_Worker)
        self._arguments = (options, threads, model.device.type)
        self._here = _machine()
        self._starting: dict[Any, Any] = {}
        self._failed = 0

    def run(self, jobs: Iterator[Job], advance: Advance) -> Iterator[tuple[int, ShardSums]]:
        for _ in range(self.size):
            self._start()
        idle: list[Any] = []
        under_way: dict[Any, tuple[Any, Job, int]] = {}
        again: list[tuple[Job, int]] = []
        while True:
            while idle:
                job, tries = again.pop() if again else (next(jobs, None), 0)
                if job is None:
                    break
                worker = idle.pop()
                under_way[worker.measure.remote(job)] = (worker, job, tries + 1)
            if idle and not under_way:  # nothing is left, and nothing can come back
                return
            ready = self._wait(list(under_way))
            if ready in self._starting:
                idle.extend(self._started(ready))
                continue
            worker, job, tries = under_way.pop(ready)
            try:
                sums = self._result(ready)
            except self.ray.exceptions.RayError as error:
                again.append((job, self._count(tries, job, error)))
                self._start()
                continue
            idle.append(worker)
            advance(len(job[0]))
            yield job[0].index, sums

    def _wait(self, under_way: list[Any]) -> Any:
        """The next shard that is done, or worker that has started; raises where a cluster gives no worker at all."""
        waited = [*under_way, *self._starting]
        ready, _ = self.ray.wait(waited, num_returns=1, timeout=None if under_way else PATIENCE)
        if not ready:
            remedy = "Look at `ray status`: is every CPU or GPU taken by others?"
            raise EnvironmentFailure(
                explain("no Ray worker has started", expected=f"one within {PATIENCE} s", got="none", remedy=remedy)
            )
        return ready[0]

    def _start(self) -> None:
        worker = self._actor.remote(self._shared, *self._arguments)
        self._starting[worker.machine.remote()] = worker

    def _started(self, ready: Any) -> list[Any]:
        """The worker whose start this is; nothing where it died in starting, and another is tried."""
        worker = self._starting.pop(ready)
        try:
            there = self._result(ready)
        except self.ray.exceptions.RayError as error:
            self._failed += 1
            if self._failed >= TRIES:
                remedy = "Are the same versions installed on every machine, and is there memory for the model?"
                what = f"a Ray worker could not start, {self._failed} times"
                raise EnvironmentFailure(explain(what, got=_last_line(error), remedy=remedy)) from error
            self._start()
            return []
        differs = {name: value for name, value in there.items() if value != self._here.get(name)}
        if differs.keys() - {_CPU}:
            remedy = "Install the same versions on every machine of the cluster"
            what = "a Ray worker runs other versions"
            raise EnvironmentFailure(
                explain(
                    what,
                    expected=_told({name: self._here[name] for name in differs}),
                    got=_told(differs),
                    remedy=remedy,
                )
            )
        if differs:
            warnings.warn(
                f"A Ray worker has another kind of CPU ({there[_CPU]}, here {self._here[_CPU]}): numbers agree with those of a local run to"
                " about 1e-6, not to the last bit.",
                stacklevel=2,
            )
        return [worker]

    def _result(self, ready: Any) -> Any:
        """What a worker returned; an error of ours, raised there, is raised here as it was."""
        try:
            return self.ray.get(ready)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, AttnprobeError):
                raise cause from error
            what = "a Ray worker failed"
            raise EnvironmentFailure(explain(what, got=f"{type(cause).__name__}: {_first_line(cause)}")) from error

    def _count(self, tries: int, job: Job, error: Exception) -> int:
        if tries >= TRIES:
            raise EnvironmentFailure(
                explain(
                    f"shard {job[0].index} lost its worker {tries} times",
                    got=_first_line(error),
                    remedy="Is there enough memory for the model on each worker? Go on with --resume",
                )
            ) from error
        return tries


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _first_line(error: Any) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _last_line(error: Any) -> str:
    """Where Ray puts the reason of a failed start."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
