"""Running shards elsewhere: on Ray, one machine or many, with the same bits as in this process.

A worker loads the model once and measures whole shards; what comes back are sums, folded by `study` in the order of the plan. So neither the
number of workers nor who was faster changes a number, as long as every worker runs on the same kind of CPU with the same number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from attnprobe.errors import EnvironmentFailure, InputError, explain, near_names
from attnprobe.heads.tables import ShardSums
from attnprobe.models.load import Model
from attnprobe.planning import Job, Options
from attnprobe.sharding import Advance, Engine, in_process, measure_shard

ENGINES = ("local", "ray")
TRIES = 3
"""Times a shard is tried before the run gives up: workers die, and a shard that kills every worker must not go round for ever."""


def engine_of(
    name: str, *, address: str | None = None, workers: int | None = None, gpus_per_worker: float = 0.0
) -> Engine:
    """The engine of that name: `local` (this process) or `ray`."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; {near_names(name, ENGINES)}.")
    if name == "local":
        return in_process
    return ray_engine(address=address, workers=workers, gpus_per_worker=gpus_per_worker)


def ray_engine(*, address: str | None = None, workers: int | None = None, gpus_per_worker: float = 0.0) -> Engine:
    """Shards on Ray actors: `workers` of them (by default as many as the cluster has CPUs, or shares of its GPUs).

    `address` is a running cluster's, such as `auto`; None starts one on this machine for the run. A shard whose worker dies is run again by
    another, up to three times. Raises `InputError` where Ray is not installed, `EnvironmentFailure` where the cluster cannot be had or a shard
    fails every time.
    """

    def run(model: Model, options: Options, jobs: Iterator[Job], advance: Advance) -> Iterator[tuple[int, ShardSums]]:
        ray = _ray()
        started = not ray.is_initialized()
        if started:
            _connect(ray, address, workers)
        try:
            yield from _Pool(ray, model, options, workers, gpus_per_worker).run(jobs, advance)
        finally:
            if started:
                ray.shutdown()

    return run


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
    options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "configure_logging": False}
    if address is None:
        options = {**options, "num_cpus": workers} if workers else options
    try:
        ray.init(address=address, **(options if address is None else {"log_to_driver": False}))
    except Exception as error:
        raise EnvironmentFailure(
            explain("cannot reach a Ray cluster", where=address or "this machine", got=str(error).splitlines()[0])
        ) from error


class _Worker:
    """Lives in its own process: holds the model, measures shards."""

    def __init__(self, model: Model, options: Options, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        self.model = model if device == "cpu" else _moved(model, device)
        self.options = options

    def measure(self, job: Job) -> ShardSums:
        return measure_shard(self.model, *job, self.options)


def _moved(model: Model, device: str) -> Model:
    model.module.to(device)
    return model


class _Pool:
    """Actors with one shard each in hand, and the shards that are under way."""

    def __init__(self, ray: Any, model: Model, options: Options, workers: int | None, gpus: float) -> None:
        self.ray = ray
        available = ray.cluster_resources()
        cpus = int(available.get("CPU", 1))
        most = int(available.get("GPU", 0) / gpus) if gpus else cpus
        self.size = min(workers or most, most)
        if self.size < 1:
            raise EnvironmentFailure(explain("the Ray cluster has no room for a worker", got=str(dict(available))))
        on_cpu = type(model)(model.module, model.tokenizer, model.name, model.head, model.source)
        self._shared = ray.put(on_cpu)
        self._actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Worker)
        self._arguments = (options, torch.get_num_threads(), str(model.device) if not gpus else "cuda")

    def run(self, jobs: Iterator[Job], advance: Advance) -> Iterator[tuple[int, ShardSums]]:
        idle = [self._start() for _ in range(self.size)]
        under_way: dict[Any, tuple[Any, Job, int]] = {}
        again: list[tuple[Job, int]] = []
        exhausted = False
        while True:
            while idle and not exhausted:
                following = again.pop() if again else (next(jobs, None), 0)
                if following[0] is None:
                    exhausted = True
                    break
                worker = idle.pop()
                under_way[worker.measure.remote(following[0])] = (worker, following[0], following[1] + 1)
            if not under_way:
                return
            [ready], _ = self.ray.wait(list(under_way), num_returns=1)
            worker, job, tries = under_way.pop(ready)
            try:
                sums = self.ray.get(ready)
            except self.ray.exceptions.RayActorError as error:
                again.append((job, self._count(tries, job, error)))
                exhausted = False
                idle.append(self._start())
                continue
            idle.append(worker)
            advance(len(job[0]))
            yield job[0].index, sums

    def _start(self) -> Any:
        return self._actor.remote(self._shared, *self._arguments)

    def _count(self, tries: int, job: Job, error: Exception) -> int:
        if tries >= TRIES:
            raise EnvironmentFailure(
                explain(
                    f"shard {job[0].index} lost its worker {tries} times",
                    got=str(error).splitlines()[0],
                    remedy="Is there enough memory for the model on each worker? Go on with --resume",
                )
            ) from error
        return tries
