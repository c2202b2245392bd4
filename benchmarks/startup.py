"""What starting costs: importing the package, `--help`, and verifying the embedded model against loading it with transformers alone.

python benchmarks/startup.py [--rounds 9]     each in a process of its own, in turns; CPU seconds of the process, and seconds on the clock
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np
from timing import interval

LOAD = """
import torch, transformers
from attnprobe.models.sources import locate
source = locate("minilm", None)
transformers.AutoModel.from_pretrained(source)
transformers.AutoTokenizer.from_pretrained(source)
"""
RUNS = {
    "bare interpreter": ["-c", "pass"],
    "import attnprobe": ["-c", "import attnprobe"],
    "attnprobe --help": ["-m", "attnprobe", "--help"],
    "import torch, transformers": ["-c", "import torch, transformers"],
    "... and load the weights": ["-c", LOAD],
    "attnprobe verify minilm": ["-m", "attnprobe", "verify", "minilm"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in RUNS}
    for number in range(-1, options.rounds):  # the first round only fills the disk's cache
        for name in list(RUNS) if number % 2 else reversed(RUNS):
            found = _run(RUNS[name])
            if number >= 0:
                spent[name].append(found)
    cpu, clock = ({name: np.array(found)[:, part] for name, found in spent.items()} for part in (0, 1))
    for name in RUNS:
        over = np.median(cpu[name] - cpu["bare interpreter"])
        print(
            f"{name:30} {np.median(cpu[name]):6.2f} s CPU, {over:6.2f} s over bare; {np.median(clock[name]):6.2f} s on the clock"
        )
    ratios = cpu["attnprobe verify minilm"] / cpu["... and load the weights"]
    low, high = interval(ratios)
    print(
        f"verify minilm over loading alone: {np.median(ratios):.2f} [{low:.2f}, {high:.2f}] ({options.rounds} rounds)"
    )


def _run(arguments: list[str]) -> tuple[float, float]:
    """CPU seconds and seconds on the clock of one process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


if __name__ == "__main__":
    main()
