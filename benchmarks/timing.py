"""Ratios of CPU time, measured side by side: A B B A, round after round, median with an interval.

Seconds on a shared machine mean little; the ratio of two things run in turns in one process does.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Ratio:
    """CPU time of one thing over that of another."""

    median: float
    low: float
    high: float
    """95 % interval of the median over rounds (order statistics)."""
    rounds: int
    seconds: float
    """Median CPU seconds of the slower-named thing."""
    base_seconds: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}] ({self.seconds:.2f} s / {self.base_seconds:.2f} s, {self.rounds} rounds)"


def ratio(thing: Callable[[], object], base: Callable[[], object], *, rounds: int = 9) -> Ratio:
    """CPU time of `thing` over that of `base`, in the order A B B A, once unmeasured first."""
    for warm in (thing, base):
        warm()
    ratios, own, bare = [], [], []
    for number in range(rounds):
        order = (thing, base, base, thing) if number % 2 == 0 else (base, thing, thing, base)
        spent = {id(thing): 0.0, id(base): 0.0}
        for run in order:
            gc.collect()
            start = time.process_time()
            run()
            spent[id(run)] += time.process_time() - start
        ratios.append(spent[id(thing)] / spent[id(base)])
        own.append(spent[id(thing)] / 2)
        bare.append(spent[id(base)] / 2)
    return Ratio(
        float(np.median(ratios)),
        *interval(ratios),
        rounds,
        float(np.median(own)),
        float(np.median(bare)),
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median, from the order of the values."""
    ordered, k = np.sort(values), int(stats.binom.ppf(0.025, len(values), 0.5))
    return float(ordered[max(k - 1, 0)]), float(ordered[min(len(ordered) - k, len(ordered) - 1)])
