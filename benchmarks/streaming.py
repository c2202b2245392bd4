"""What measuring costs over the bare sdpa forward pass of the same batches.

python benchmarks/streaming.py CORPUS [--sentences N] [--threads N]
"""

import argparse
from functools import partial

import torch
from timing import ratio

import attnprobe
from attnprobe.data import path
from attnprobe.heads.metrics import default_metrics
from attnprobe.heads.prepared import prepare
from attnprobe.heads.running import inputs_for, padded
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.planning import DEFAULT_RELATIONS, Options, shards_of
from attnprobe.sharding import measure_shard
from attnprobe.text.corpus import read_corpus
from attnprobe.text.drops import Drops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", nargs="?", default=str(path("bundled")))
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = attnprobe.load("minilm", attn="sdpa")
    plain = Options(default_metrics(), (), max_sentences=options.sentences)
    shards = list(shards_of(model, read_corpus(options.corpus), plain, Drops()))
    inputs = [
        inputs_for(model, prepare(padded(model, [members[i] for i in batch]), batch, None, model.device))
        for shard, members in shards
        for batch in shard.batches
    ]

    def bare() -> None:
        with torch.no_grad():
            for batch in inputs:
                model.backbone(**batch)

    def captured() -> None:
        for batch in inputs:
            run_forward(model, from_model_inputs(model, batch, describe=False), lambda call: None)

    def measured(chosen: Options) -> None:
        for shard, members in shards:
            measure_shard(model, shard, members, chosen)

    full = Options(default_metrics(), DEFAULT_RELATIONS, max_sentences=options.sentences)
    norms = Options(default_metrics(), DEFAULT_RELATIONS, ("weights", "norms"), max_sentences=options.sentences)
    few = Options(("entropy", "distance"), (), max_sentences=options.sentences)
    print(
        f"{sum(len(m) for _, m in shards)} sentences, {len(inputs)} batches, {options.threads} thread(s); ratio to bare sdpa"
    )
    for name, thing in (
        ("capture of q, k, v, context", captured),
        ("entropy and distance", partial(measured, few)),
        ("all metrics", partial(measured, plain)),
        ("all metrics and dep, udep relations", partial(measured, full)),
        ("these, and the relations by norms too", partial(measured, norms)),
    ):
        print(f"{name:40} {ratio(thing, bare, rounds=options.rounds)}", flush=True)


if __name__ == "__main__":
    main()
