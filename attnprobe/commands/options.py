"""Options that several commands share: one name, one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[str, typer.Argument(help="Short name (minilm), folder, or hub id.")]
Corpus = Annotated[
    list[str] | None,
    typer.Option(
        "--corpus",
        help="CoNLL-U, text, JSON lines or Parquet; a file, a glob, dataset:NAME, or - for standard input; repeatable. Default: the bundled treebank.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="File to write.")]
Metrics = Annotated[
    str | None, typer.Option("--metrics", help="Comma-separated head metrics; see `attnprobe list metrics`.")
]
Relations = Annotated[
    str | None,
    typer.Option("--relations", help="Comma-separated relations (dep, dep:obj, ...); see `attnprobe list relations`."),
]
Probes = Annotated[
    str | None,
    typer.Option("--probes", help="Comma-separated tasks to probe each head for as well; see `attnprobe list tasks`."),
]
MaxSentences = Annotated[int | None, typer.Option("--max-sentences", min=1, help="Use only the first N sentences.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything drawn at random.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, mps or auto.")]
Attn = Annotated[str | None, typer.Option("--attn", help="Attention function: sdpa or eager. Default: the library's.")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float32, float64, bfloat16 or float16. Default: as stored.")
]
BatchTokens = Annotated[int, typer.Option("--batch-tokens", min=1, help="Most tokens of a batch, padding counted.")]
ShardSentences = Annotated[
    int,
    typer.Option(
        "--shard-sentences", min=1, help="Sentences of a shard: what is kept, or sent to a worker, at a time."
    ),
]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Count and leave out sentences with a broken tree instead of stopping.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted run of the same model, corpus and options.")
]
EngineName = Annotated[str, typer.Option("--engine", help="local, or ray: shards on several processes or machines.")]
Address = Annotated[
    str | None, typer.Option("--address", help="Address of a running Ray cluster; default: one of this machine.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Ray workers. Default: one for each CPU (or GPU share).")
]
GpusPerWorker = Annotated[float, typer.Option("--gpus-per-worker", min=0.0, help="GPUs that each Ray worker takes.")]
Sinks = Annotated[str, typer.Option("--sinks", help="kept, or both: measure again with special tokens taken out.")]
Scorers = Annotated[
    str,
    typer.Option("--scorers", help="Comma-separated: what relations are read off; see `attnprobe list scorers`."),
]
Extras = Annotated[
    str,
    typer.Option("--extras", help="Comma-separated: what is measured besides, or none; see `attnprobe list extras`."),
]
Unit = Annotated[
    str, typer.Option("--unit", help="sentence, or passage: sentences of a document read together (coreference).")
]
Cluster = Annotated[
    str, typer.Option("--cluster", help="What stands or falls together in intervals and splits: document or sentence.")
]
Margin = Annotated[
    float, typer.Option("--margin", min=0.0, max=1.0, help="Gain over the baseline that a syntactic label asks for.")
]
Importance = Annotated[
    int, typer.Option("--importance", min=0, help="Sentences to measure importance of heads on; 0: not measured.")
]
Controls = Annotated[
    bool, typer.Option("--controls", help="Measure two random-weights models too (three times the work).")
]
Causal = Annotated[
    bool, typer.Option("--causal", help="Take each head with a syntactic or semantic label out, against random heads.")
]
Totals = Annotated[
    bool, typer.Option("--totals", help="Keep totals of groups of documents, so that `compare` can pair two studies.")
]
Unverified = Annotated[
    bool,
    typer.Option("--unverified", help="Go on although the capture does not match the model; the page says so in red."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Texts = Annotated[list[str] | None, typer.Option("--text", help="A text to run; may be given several times.")]
