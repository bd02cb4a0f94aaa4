"""Whether tokens follow the prompts, from second to second or over minutes: where more prompts take
none away, they hold up nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.facts import Facts

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Blocks that a recording is cut into, fewest of them, and windows that each needs: prompts come in
#: lumps.
N_BLOCKS = 12
N_LEAST = 6
BLOCK_WINDOWS = 10
#: Windows that a mean to compare with needs.
N_WINDOWS = 3
#: With so many times the prompts, requests that still get this share of their tokens are not held
#: up by prompts.
DOSE = 1.5
UNMOVED = 0.9
#: Changes from window to window that tell whether one follows the other, and how many of them must
#: be of this share of the usual prompts.
N_CHANGES = 10
N_MOVED = 5
MOVED = 0.5
#: Standard deviations that this must be beyond chance: one in two hundred.
BEYOND_CHANCE = 2.6
#: Hardly a prompt is computed up to this share of the mean.
CALM = 0.2
#: Windows that are taken together.
_SIZES = (1, 2, 4)


def tokens_despite_prompts(
    edges: Ints, prompt: Floats, generated: Floats, running: Floats, is_batch: Flags
) -> tuple[float, float] | None:
    """Return how many times more prompts came in the blocks of time with the most than in those
    with the fewest, and how many times its tokens a running request got then.

    None where prompts hardly differed, or tokens became fewer with them.

    Args:
        edges: ``(n + 1,)`` begins of the windows and the end of the last, ns.
        prompt: Prompt tokens/s in each window.
        generated: Generated tokens/s in each window.
        running: Running requests in each window.
        is_batch: Windows that count.
    """
    rows = np.flatnonzero(is_batch)
    n_blocks = min(N_BLOCKS, len(rows) // BLOCK_WINDOWS)
    if n_blocks < N_LEAST:
        return None
    weight = np.diff(edges) / 1e9
    # Means weighted by the length of the windows.
    parts = np.array_split(rows, n_blocks)
    spent = np.array([weight[part].sum() for part in parts])
    prompts, tokens, requests = (
        np.array([values[part] @ weight[part] for part in parts]) / spent
        for values in (prompt, generated, running)
    )
    speed = tokens / np.maximum(requests, 1e-9)
    order = np.argsort(prompts)
    few, many = order[: n_blocks // 3], order[-(n_blocks // 3) :]
    low, high = quantiles.median(prompts[few]) or 0.0, quantiles.median(prompts[many]) or 0.0
    usual, late = quantiles.median(speed[few]) or 0.0, quantiles.median(speed[many]) or 0.0
    if low <= 0 or usual <= 0 or high < DOSE * low or late < UNMOVED * usual:
        return None
    return high / low, late / usual


def more_prompts(prompt: Floats, is_held: Flags, near: Flags, is_batch: Flags) -> float | None:
    """Return how many times more prompts came in windows in which tokens waited long than in
    others; None where there are too few others.

    Args:
        prompt: Prompt tokens/s in each window, counted when a prompt's first token comes.
        is_held: Windows in which tokens waited long.
        near: Those and their neighbours, in which the prompts of such a wait may be counted.
        is_batch: Windows that count.
    """
    known = np.nan_to_num(prompt)
    soon = np.maximum(known, np.append(known[1:], 0.0))
    for values, chosen in ((known, near), (soon, is_held)):
        others = is_batch & ~chosen
        if others.sum() >= N_WINDOWS and chosen.any():
            return float(values[chosen].mean() / max(float(values[others].mean()), 1e-9))
    return None


def was_paused(facts: Facts, edges: Ints, near: Flags, pause_s: float, lost_ns: int) -> bool:
    """Return whether the device paused for most of what was lost: it computed no prompts then.

    Args:
        facts: Of the session; without calls its utilisation tells how long the device paused.
        edges: ``(n + 1,)`` begins of the windows and the end of the last, ns.
        near: Windows in which tokens are missing, and those beside them: a token that waited comes
            at the end of its wait, which began before.
        pause_s: Shortest pause that counts.
        lost_ns: Time that was lost.
    """
    around = intervals.union(intervals.make(edges[:-1][near], edges[1:][near]))
    if facts.processes:
        idle = facts.idle(facts.device_of[facts.processes[0]])
        is_pause = idle[:, 1] - idle[:, 0] >= 1e9 * pause_s
        return 2 * intervals.overlap(around, idle[is_pause]) >= lost_ns
    samples = facts.utilisation(None)
    used = samples.mean(around) if samples is not None else None
    if used is None or used[1] < N_WINDOWS:
        return False
    return 2 * (1 - used[0] / 100) * intervals.total(around) >= lost_ns


@dataclass(frozen=True)
class Dose:
    """How lost time follows the prompts from window to window.

    Attributes:
        explained: Share of what was lost that the prompts account for at the rate at which one
            follows the other; may exceed 1.
        n: Changes from one window to the next that tell it.
    """

    explained: float
    n: int


def dose_of(prompt: Floats, lost: Floats, is_low: Flags) -> Dose | None:
    """Return how what was lost follows the prompts within the time between the first low window
    and the last; None where prompts hardly vary, or the loss does not follow them beyond chance.

    Only changes from one window to the next count: that both began at the same moment tells
    nothing of the one making the other.

    Args:
        prompt: Prompt tokens/s in each window, counted when a prompt's first token comes: in the
            window in which it was computed or, where it took longer, in one after it.
        lost: Share of each window that was lost, in [0, 1]; NaN in windows that do not count.
        is_low: Windows in which tokens were few, whatever prompts came.
    """
    rows = np.flatnonzero(is_low)
    if len(rows) == 0:
        return None
    span = slice(int(rows[0]), int(rows[-1]) + 1)
    known = np.nan_to_num(prompt)
    best, found = 0.0, None
    # Computed in the window that counts it, half in the one before, or in all since the last count.
    later = np.append(known[1:], 0.0)
    for computed in (known, (known + later) / 2, later, _since_last(known)):
        for size in _SIZES:
            told = _follows(_in_blocks(computed[span], size), _in_blocks(lost[span], size))
            if told is not None and told[0] > best:
                best, slope, n = told
                is_known = np.isfinite(lost[span])
                whole = max(float(lost[span][is_known].mean()), 1e-9)
                found = Dose(slope * float(computed[span][is_known].mean()) / whole, n)
    return found


def speed_between(prompt: Floats, speed: Floats, is_phase: Flags) -> float | None:
    """Return the median speed of windows of a phase in which hardly a prompt was computed, in the
    unit of ``speed``; None for too few.

    Args:
        prompt: Prompt tokens/s in each window, counted at the end of a prompt.
        speed: Tokens/s of a request in each window.
        is_phase: Windows of the phase.
    """
    known = np.nan_to_num(prompt)
    most = np.maximum(np.maximum(known, np.append(known[1:], 0.0)), _since_last(known))
    rows = np.flatnonzero(is_phase)
    if len(rows) == 0:
        return None
    calm = is_phase & (most <= CALM * float(known[is_phase].mean()))
    return quantiles.median(speed[calm]) if calm.sum() >= N_WINDOWS else None


def _since_last(prompt: Floats) -> Floats:
    """Prompts spread evenly over the windows since the last that counted any."""
    rows = np.flatnonzero(prompt > 0)
    result = np.zeros(len(prompt))
    begin = 0
    for row in rows.tolist():
        result[begin : row + 1] = prompt[row] / (row + 1 - begin)
        begin = row + 1
    return result


def _in_blocks(values: Floats, size: int) -> Floats:
    """Means of so many windows each; what is left over at the end is dropped."""
    n = len(values) // size
    result: Floats = values[: n * size].reshape(n, size).mean(axis=1)
    return result


def _follows(prompt: Floats, lost: Floats) -> tuple[float, float, int] | None:
    """How well the loss fits the prompts, its typical change per change of the prompts, and how
    many changes there were; None where that one follows the other may be chance.
    """
    changes, effects = np.diff(prompt), np.diff(lost)
    is_known = np.isfinite(effects)
    changes, effects = changes[is_known], effects[is_known]
    is_moved = np.abs(changes) >= MOVED * float(np.mean(prompt)) if len(prompt) else changes > 0
    n = len(changes)
    if n < N_CHANGES or is_moved.sum() < N_MOVED or effects.std() <= 0:
        return None
    alike = float(np.corrcoef(_ranks(changes), _ranks(effects))[0, 1])
    # Neighbouring changes share a window, so that half of them count; by Fisher's z.
    z = _fisher(alike) * math.sqrt(max(n / 2 - 3, 0.0) / 1.06)
    if z < BEYOND_CHANCE:
        return None
    both = np.isfinite(prompt) & np.isfinite(lost)
    levels = float(np.corrcoef(prompt[both], lost[both])[0, 1])
    fit = _fisher(levels) * math.sqrt(n)
    return fit, float(np.median(effects[is_moved] / changes[is_moved])), n


def _fisher(correlation: float) -> float:
    """Fisher's z of a correlation in [-1, 1], finite."""
    return math.atanh(min(max(correlation, -0.9999), 0.9999))


def _ranks(values: Floats) -> Floats:
    """Ranks, equal values sharing the mean of theirs."""
    _unique, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    result: Floats = (last - (counts - 1) / 2)[at]
    return result
