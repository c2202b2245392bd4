"""How long a run takes on a cluster: a simulation, and what it says of small runs that are then measured.

python benchmarks/cluster.py measure [CORPUS] [--sentences 2000]   costs measured here; runs with 1 and 2 Ray workers, predicted and measured
python benchmarks/cluster.py simulate [--tokens 1e9] [--rate 2650] the same model for many tokens and workers

The one who starts a run reads the corpus twice (to lay the plan, then to hand shards out), and takes in, keeps and adds up each shard's sums;
workers do the rest. So time = first reading + start + the slower of (workers, second reading and taking in) + last shards. Shards differ in
speed, workers die and are replaced, and their shard is run again: all drawn at random from what `Costs` says.
"""

import argparse
import heapq
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

import attnprobe
from attnprobe.checkpoint import checkpoints
from attnprobe.data import path
from attnprobe.engines import ray_engine
from attnprobe.heads.metrics import default_metrics
from attnprobe.planning import DEFAULT_RELATIONS, Options, lay_plan, shards_of
from attnprobe.sharding import Fold, in_process, measure_shard
from attnprobe.text.batching import PlanOptions
from attnprobe.text.corpus import read_corpus
from attnprobe.text.drops import Drops


@dataclass(frozen=True)
class Costs:
    """What a run costs, in seconds unless said; the values are those measured on two x86-64 cores, MiniLM, all metrics and relations."""

    rate: float = 2650.0
    """Tokens a second of one worker."""
    reading: float = 108_000.0
    """Tokens a second that the driver reads and encodes."""
    take_in: float = 0.03
    """For each shard: fetching its sums, writing them to disk, adding them up."""
    hand_out: float = 0.01
    """For each shard: packing it for a worker."""
    cluster: float = 5.0
    """Reaching or starting the cluster."""
    worker: float = 4.0
    """Starting a worker: a process, its imports, the model."""
    shard: int = 34_000
    """Tokens of a shard."""
    spread: float = 0.05
    """Standard deviation of the logarithm of a shard's time: shards of equal cost are not equally long."""
    slow: float = 0.0
    """Share of workers on a slow machine, and by what factor it is slower."""
    slower: float = 2.0
    life: float = float("inf")
    """Mean time until a worker dies."""
    sums: float = 6.6e6
    """Bytes of a shard's sums."""


@dataclass(frozen=True)
class Outcome:
    """One simulated run."""

    wall: float
    working: float
    """Share of the workers' time spent on shards that counted."""
    driver: float
    """Share of the time after the first reading in which the driver was busy."""
    lost: int
    """Workers that died."""
    tail: float
    """Seconds at the end in which some worker had nothing left to do."""


def simulate(tokens: float, workers: int, costs: Costs, seed: int = 0) -> Outcome:
    """Run the engine's loop over simulated time: one driver, `workers` workers, one shard in hand each."""
    draw = np.random.default_rng(seed)
    shards = max(1, round(tokens / costs.shard))
    each = tokens / shards
    speeds = np.where(draw.random(workers) < costs.slow, 1 / costs.slower, 1.0)
    begun = tokens / costs.reading + costs.cluster
    driver, busy, useful, lost, waiting, done = begun, 0.0, 0.0, 0, shards, 0
    events = [(begun + costs.worker, worker, "ready") for worker in range(workers)]
    heapq.heapify(events)
    first_idle = None
    while done < shards:
        now, worker, what = heapq.heappop(events)
        driver = max(driver, now)
        if what == "died":
            lost, waiting = lost + 1, waiting + 1
            heapq.heappush(events, (now + costs.worker, worker, "ready"))
            continue
        if what == "done":
            done, driver, busy = done + 1, driver + costs.take_in, busy + costs.take_in
        if not waiting:
            first_idle = first_idle if first_idle is not None else now
            continue
        handing = each / costs.reading + costs.hand_out
        waiting, driver, busy = waiting - 1, driver + handing, busy + handing
        needs = each / (costs.rate * speeds[worker]) * float(np.exp(draw.normal(0.0, costs.spread)))
        lives = draw.exponential(costs.life) if np.isfinite(costs.life) else np.inf
        if lives < needs:
            heapq.heappush(events, (driver + lives, worker, "died"))
        else:
            useful += needs
            heapq.heappush(events, (driver + needs, worker, "done"))
    span = driver - begun
    tail = driver - (first_idle if first_idle is not None else driver)
    return Outcome(driver, useful / (span * workers), busy / span, lost, tail)


def calibrate(model: attnprobe.Model, corpus: str, options: Options) -> tuple[Costs, float]:
    """The costs of this machine, each measured by itself, and the tokens of the corpus."""
    import ray

    began = time.perf_counter()
    planned = lay_plan(model, read_corpus(corpus), options)
    jobs = list(shards_of(model, read_corpus(corpus), options, Drops()))
    reading = (time.perf_counter() - began) / 2
    tokens = sum(sum(shard.lengths) for shard, _ in jobs)
    spent, sums = [], []
    for job in jobs:
        began = time.perf_counter()
        sums.append(measure_shard(model, *job, options))
        spent.append((time.perf_counter() - began) / sum(job[0].lengths))
    with tempfile.TemporaryDirectory() as folder, checkpoints(Path(folder) / "s.nc", "", resume=False) as store:
        fold = Fold(None, store)
        began = time.perf_counter()
        for index, one in enumerate(sums):
            store.save(index, one)
            fold.add(index, one)
        take_in = (time.perf_counter() - began) / len(sums)
        size = np.mean([file.stat().st_size for file in store.folder.glob("*.npz")])
    began = time.perf_counter()
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    cluster = time.perf_counter() - began
    began = time.perf_counter()
    list(ray_engine(workers=1)(model, options, iter(jobs[:1]), lambda n: None))
    first = time.perf_counter() - began
    packing = time.perf_counter()
    ray.put(jobs[0])
    packing = time.perf_counter() - packing
    ray.shutdown()
    mine = float(np.median(spent)) * sum(jobs[0][0].lengths)
    return Costs(
        rate=1 / float(np.median(spent)),
        reading=planned.tokens / reading,
        take_in=take_in,
        hand_out=packing,
        cluster=cluster,
        worker=max(first - mine, 0.0),
        shard=tokens // len(jobs),
        spread=float(np.std(np.log(spent))),
        sums=float(size),
    ), float(tokens)


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = attnprobe.load("minilm", attn="sdpa")
    plan = PlanOptions(window=options.shard_sentences)
    asked = Options(default_metrics(), DEFAULT_RELATIONS, max_sentences=options.sentences, plan=plan, examples=0)
    costs, tokens = calibrate(model, options.corpus, asked)
    print(f"{tokens:.0f} tokens; load average {os.getloadavg()[0]:.1f}")
    print("  " + ", ".join(f"{name} {value:.3g}" for name, value in asdict(costs).items()))

    def wall(engine: object, threads: int) -> float:
        torch.set_num_threads(threads)
        planned = lay_plan(model, read_corpus(options.corpus), asked)
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, checkpoints(Path(folder) / "s.nc", "", resume=False) as store:
            fold = Fold(None, store)
            jobs = iter(shards_of(model, read_corpus(options.corpus), asked, Drops()))
            for index, sums in engine(model, asked, jobs, lambda n: None):
                store.save(index, sums)
                fold.add(index, sums)
        assert planned.sentences
        return time.perf_counter() - began

    reading = tokens / costs.reading
    for workers in (1, 2):
        foreseen = simulate(tokens, workers, costs).wall - reading
        took = wall(ray_engine(workers=workers), 1)
        print(
            f"Ray, {workers} worker(s) of 1 thread: predicted {foreseen:.1f} s, measured {took:.1f} s ({took / foreseen:.2f} x)",
            flush=True,
        )
    for threads in (1, 2):
        print(f"this process, {threads} thread(s): {wall(in_process, threads):.1f} s", flush=True)


def tabulate(options: argparse.Namespace) -> None:
    shard = 60_000
    base = Costs(rate=options.rate, shard=shard)
    sound = ("all sound", base)
    cases = (
        sound,
        ("a tenth of the workers half as fast", replace(base, slow=0.1)),
        ("each worker dies once in 10 hours", replace(base, life=36_000.0)),
        ("no larger shards than 17,000 tokens", replace(base, shard=17_000)),
    )
    shards = options.tokens / shard
    print(f"{options.tokens:.0e} tokens, {options.rate:.0f} tokens/s a worker, {shards:.0f} shards of {shard} tokens")
    print(
        f"first reading {options.tokens / base.reading / 3600:.1f} h; sums of all shards {shards * base.sums / 1e9:.0f} GB"
    )
    print(
        "| workers | case | hours | tokens/s | workers at work | driver busy | died | tail, s |\n|---|---|---|---|---|---|---|---|"
    )
    for workers in options.workers:
        for name, costs in cases if workers in options.workers[1:3] else (sound,):
            found = simulate(options.tokens, workers, costs)
            print(
                f"| {workers} | {name} | {found.wall / 3600:.1f} | {options.tokens / found.wall:.0f} | {found.working:.0%} | "
                f"{found.driver:.0%} | {found.lost} | {found.tail:.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    small = commands.add_parser("measure")
    small.add_argument("corpus", nargs="?", default=str(path("bundled")))
    small.add_argument("--sentences", type=int, default=2000)
    small.add_argument("--shard-sentences", type=int, default=128)
    small.set_defaults(do=measure)
    large = commands.add_parser("simulate")
    large.add_argument("--tokens", type=float, default=1e9)
    large.add_argument("--rate", type=float, default=Costs.rate)
    large.add_argument("--workers", type=int, nargs="+", default=[1, 16, 64, 256])
    large.set_defaults(do=tabulate)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
