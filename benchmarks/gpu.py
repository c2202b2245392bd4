"""What measuring heads costs on a GPU: tokens a second, ratio to the bare forward pass, peak memory. Says so where there is none.

python benchmarks/gpu.py [CORPUS] [--device auto] [--sentences 2000] [--dtype bfloat16]

Wall time with the device waited for, in the order A B B A: on a GPU it is the device that works, so the process's CPU time says little.
With `--device cpu` it runs anywhere, which shows that the path is one and the same.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

import attnprobe
from attnprobe.data import path
from attnprobe.heads.metrics import default_metrics
from attnprobe.heads.prepared import prepare
from attnprobe.heads.running import inputs_for, padded
from attnprobe.planning import DEFAULT_RELATIONS, Options, shards_of
from attnprobe.sharding import measure_shard
from attnprobe.text.batching import PlanOptions
from attnprobe.text.corpus import read_corpus
from attnprobe.text.drops import Drops

BACKENDS = {"cuda": torch.cuda, "mps": torch.mps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", default=str(path("bundled")))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", action="append", help="one or more; default: float32 and bfloat16")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.device == "auto" and not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        print("no GPU here (neither CUDA nor MPS): nothing measured; --device cpu runs the same path on the CPU")
        sys.exit(0)
    for dtype in options.dtype or ("float32", "bfloat16"):
        measure(options, dtype)


def measure(options: argparse.Namespace, dtype: str) -> None:
    model = attnprobe.load("minilm", attn="sdpa", device=options.device, dtype=dtype)
    plan = PlanOptions(batch_tokens=options.batch_tokens)
    chosen = Options(default_metrics(), DEFAULT_RELATIONS, max_sentences=options.sentences, plan=plan)
    shards = list(shards_of(model, read_corpus(options.corpus), chosen, Drops()))
    inputs = [
        inputs_for(model, prepare(padded(model, [members[i] for i in batch]), batch, None, model.device))
        for shard, members in shards
        for batch in shard.batches
    ]
    tokens = sum(sum(shard.lengths) for shard, _ in shards)
    backend = BACKENDS.get(model.device.type)

    def bare() -> None:
        with torch.no_grad():
            for batch in inputs:
                model.backbone(**batch)

    def measured(asked: Options) -> None:
        for shard, members in shards:
            measure_shard(model, shard, members, asked)

    print(f"{device_name(model.device)}, {dtype}: {tokens} tokens, {len(inputs)} batches")
    for name, asked in (
        ("all metrics", Options(default_metrics(), (), plan=plan)),
        ("all metrics and dep, udep relations", chosen),
    ):
        seconds, base, peak = in_turns(partial(measured, asked), bare, backend, options.rounds)
        print(
            f"  {name:38} {tokens / seconds:10.0f} tokens/s, {seconds / base:.2f} x the bare forward ({tokens / base:.0f} tokens/s){peak}"
        )


def in_turns(
    thing: Callable[[], object], base: Callable[[], object], backend: object, rounds: int
) -> tuple[float, float, str]:
    """Median seconds of both, and the peak memory of the first."""

    def timed(run: Callable[[], object]) -> float:
        synchronise(backend)
        began = time.perf_counter()
        run()
        synchronise(backend)
        return time.perf_counter() - began

    base()
    if backend is torch.cuda:
        torch.cuda.reset_peak_memory_stats()
    thing()
    peak = ""
    if backend is torch.cuda:
        peak = f", peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    elif backend is torch.mps:
        peak = f", driver {torch.mps.driver_allocated_memory() / 2**20:.0f} MiB"
    own, bare = [], []
    for number in range(rounds):
        for run in (thing, base, base, thing) if number % 2 == 0 else (base, thing, thing, base):
            (own if run is thing else bare).append(timed(run))
    return float(np.median(own)), float(np.median(bare)), peak


def synchronise(backend: object) -> None:
    if backend is not None:
        backend.synchronize()


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


if __name__ == "__main__":
    main()
