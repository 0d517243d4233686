"""Whether what differs is rounding or coupling, and where it arises.

Two runs of one function differ by rounding alone. In float64 such a difference shrinks
with the unit roundoff, from ``u`` to ``2**-53``; what one sample has to do with
another stays. Which of the two a difference did is decided at the geometric mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from gradkit.numerics._consistency_rows import Difference
from gradkit.numerics._consistency_runs import Findings
from gradkit.numerics._consistency_trace import Event, Key
from gradkit.numerics._ulps import unit_roundoff

__all__ = ["VERDICTS", "Judge", "Verdict", "judged", "stays"]

#: From the best to the worst; a row of several tensors has the worst of theirs.
#: ``"moved"``, rows that are other samples', is none of the public ones.
VERDICTS = ("skipped", "equal", "rounding", "branch", "unresolved", "moved", "coupled")

_FINE = unit_roundoff(torch.float64)
#: A kink's jump is told from rounding where a number has many digits.
_MANY_DIGITS = 2.0**-20

At = tuple[Key, str]


@dataclass
class Verdict:
    """What is said of one tensor, or of one side of a call."""

    word: str
    why: str | None = None
    parts: Difference = field(default_factory=Difference)
    moved: Difference = field(default_factory=Difference)
    fine: float | None = None

    @property
    def differs(self) -> bool:
        """Whether any entry does, in any run."""
        skipped = self.word == "skipped"
        return not skipped and self.parts.differing + self.moved.differing > 0

    def __iadd__(self, other: Verdict) -> Verdict:
        if VERDICTS.index(other.word) > VERDICTS.index(self.word):
            self.word = other.word
        self.why = self.why or other.why
        self.parts += other.parts
        self.moved += other.moved
        if other.fine is not None:
            self.fine = max(self.fine or 0.0, other.fine)
        return self


def stays(fine: Difference, coarse: Difference, unit: float) -> bool:
    """Whether a difference in float64 is more than rounding can be.

    Args:
        fine: The difference in float64.
        coarse: The same where ``unit`` is the unit roundoff. Where it has none, one
            rounding of the largest number could still have made one.
        unit: ``u`` of the coarser computation.
    """
    if math.isinf(fine.gap):
        return True
    return fine.gap > math.sqrt(_FINE / unit) * max(coarse.gap, unit * coarse.size)


def judged(
    given: Difference,
    fine: Difference | None,
    coarse: Difference | None,
    unit: float,
    *,
    spread: float = 0.0,
    same_shape: bool = False,
    sound: bool = True,
) -> str:
    """Return the verdict on one difference.

    Args:
        given: The difference in the model's own precision.
        fine: In float64; ``None`` where there is none.
        coarse: In a precision of unit roundoff ``unit``.
        unit: ``u`` of ``coarse``.
        spread: By how many units of float64 earlier results differ there; 0: the
            result of a derivative, of which no earlier is known.
        same_shape: Whether the two runs had one shape, so that the same kernels ran.
        sound: Whether all of the float64 computation was one.
    """
    if not given.differing:
        return "equal"
    if fine is None or coarse is None:
        # One shape, one kernel: what moves by a lot is moved by the others.
        gross = given.gap > math.sqrt(unit) * given.size
        return "coupled" if same_shape and gross else "unresolved"
    if stays(fine, coarse, unit):
        gross = same_shape and given.gap > math.sqrt(unit) * given.size
        return "coupled" if sound or gross else "unresolved"
    if fine.whole:
        # Ties may be broken otherwise by another kernel, but not by the same.
        return "coupled" if same_shape and sound else "unresolved"
    return "branch" if _jumps(given, fine, unit, spread) else "rounding"


def _jumps(given: Difference, fine: Difference, unit: float, spread: float) -> bool:
    """Whether a difference is too large for rounding that float64 saw amplified."""
    if given.whole:
        return True
    if not spread or unit > _MANY_DIGITS or not given.size:
        return False
    spread = max(spread, _spread(fine), 1.0)
    return given.gap > math.sqrt(unit) * spread * given.size


def _spread(fine: Difference) -> float:
    """Return how many units of roundoff a difference in float64 is."""
    return fine.gap / (_FINE * fine.size) if fine.size else 0.0


@dataclass(eq=False)
class Judge:
    """Judges what a survey found, by what surveys in other precisions found.

    Args:
        own: In the model's precision.
        fine: In float64, or ``None``.
        coarse: In a precision of unit roundoff ``unit``, or ``None``.
        unit: ``u`` of ``coarse``.
    """

    own: Findings
    fine: Findings | None
    coarse: Findings | None
    unit: float

    @property
    def sound(self) -> bool:
        """Whether float64 was float64, and the model repeats itself."""
        lower = self.fine is not None and self.fine.lower
        return not lower and self.own.repeats

    def events(self, size: int) -> dict[Key, Verdict]:
        """Return the verdict on each side of each call, in the order they happened."""
        found: dict[Key, Verdict] = {}
        spread = 1.0
        for event in self.own.events:
            verdict = Verdict("skipped", None if event.tensors else "no tensors")
            for path in event.tensors:
                verdict += self._tensor(size, (event.key, path), spread)
            spread = max(spread, self._spread(size, event))
            found[event.key] = verdict
        _settle(found)
        return found

    def _tensor(self, size: int, at: At, spread: float) -> Verdict:
        cell = self.own.parts[size][at]
        layout = self.own.layout(at)
        moved = self.own.moved.get(at, Difference())
        is_model = at[0] == Key("", 0, "out")
        reshaped = cell.reshaped or cell.why
        if is_model and reshaped and reshaped.startswith("its shape"):
            return Verdict("coupled", reshaped, moved=moved)
        parts = Difference() if layout is None else cell.found.get(layout, Difference())
        if cell.why is not None:
            return Verdict("skipped", cell.why)
        if not parts.entries and not moved.entries:
            return Verdict("skipped", "it holds no numbers of samples")
        ran = self.own.counts[size][0] > 0
        words = [
            self._word(parts, "parts", size, at, spread),
            self._word(moved, "moved", size, at, spread),
        ]
        if words[1] == "coupled" and self._reordered(at):
            # In its place stands another sample, which may be among the replaced.
            words[1] = "moved"
        word = max(words, key=VERDICTS.index)
        why = cell.reshaped
        if not ran and word == "equal":
            word = "unresolved" if is_model else "skipped"
            why = "no batch of this size ran"
        fine = [self._other(self.fine, name, size, at) for name in ("parts", "moved")]
        sizes = [d.of_size for d in fine if d is not None]
        return Verdict(word, why, parts, moved, max(sizes, default=None))

    def _word(
        self, given: Difference, name: str, size: int, at: At, spread: float
    ) -> str:
        """Return the verdict on one difference; ``"moved"``: rows of other samples."""
        fine = self._other(self.fine, name, size, at)
        coarse = self._other(self.coarse, name, size, at)
        word = judged(
            given, fine, coarse, self.unit,
            spread=spread, same_shape=name == "moved", sound=self.sound,
        )  # fmt: skip
        elsewhere = word == "coupled" and _found_elsewhere(fine, coarse, self.unit)
        return "moved" if elsewhere else word

    def _reordered(self, at: At) -> bool:
        """Whether rows are other samples' in batches of any size."""
        layout = self.own.layout(at)
        return any(
            layout is not None
            and cells[at].why is None
            and layout in cells[at].found
            and self._word(cells[at].found[layout], "parts", size, at, 1.0) == "moved"
            for size, cells in self.own.parts.items()
        )

    def _other(
        self, findings: Findings | None, name: str, size: int, at: At
    ) -> Difference | None:
        """Return the same difference in another precision."""
        if findings is None:
            return None
        if name == "moved":
            return findings.moved.get(at)
        cell, layout = findings.parts[size].get(at), self.own.layout(at)
        if cell is None or cell.why is not None or layout is None:
            return None
        return cell.found.get(layout)

    def _spread(self, size: int, event: Event) -> float:
        found = [
            self._other(self.fine, "parts", size, (event.key, path))
            for path in event.tensors
        ]
        return max((_spread(d) for d in found if d is not None), default=0.0)


def _found_elsewhere(
    fine: Difference | None, coarse: Difference | None, unit: float
) -> bool:
    """Whether rows that differ are those of other samples, to rounding."""
    if fine is None or coarse is None:
        return False
    nearest = replace(coarse, gap=coarse.elsewhere)
    return not stays(replace(fine, gap=fine.elsewhere), nearest, unit)


def _settle(found: dict[Key, Verdict]) -> None:
    """Say what rows inside are that are other samples', or reach no output.

    A model may sort samples, or send tokens to experts, and put them back.
    """
    outcome = found[Key("", 0, "out")].word
    for verdict in found.values():
        if verdict.word == "moved":
            verdict.word = "coupled" if outcome == "moved" else "skipped"
            verdict.why = verdict.why or "its rows are other samples' in another batch"
        elif verdict.word == "coupled" and outcome not in ("coupled", "moved"):
            verdict.word, verdict.why = "skipped", "what couples it reaches no output"
