"""Random directions: the derivatives by each mode against differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradkit.errors import GradkitError, UnsupportedModelError
from gradkit.testing._differences import SAFETY, STARTS, Differences, Slope, agreed
from gradkit.testing._entry import DECISIVE, Entry, named, pin_forward, pin_reverse
from gradkit.testing._hints import Around, around_forward, around_reverse
from gradkit.testing._messages import jump, mismatch, not_offered, raised, unpinned
from gradkit.testing._point import Point
from gradkit.testing._report import Findings
from gradkit.testing._variables import place

__all__ = ["Examination"]

_MOST_LOOKS = 6


class Examination:
    """Compares the modes of one problem with differences of it.

    Args:
        point: Where.
        modes: ``"reverse"``, ``"forward"``.
        order: For the messages.
        compared_with: What the differences are of.
        generator: Draws directions.
        findings: Collects what passed.
    """

    def __init__(
        self,
        point: Point,
        modes: Sequence[str],
        order: int,
        compared_with: str,
        generator: torch.Generator,
        findings: Findings,
    ) -> None:
        self._modes, self._order, self._compared_with = modes, order, compared_with
        self._generator, self._findings = generator, findings
        self._point, self._beside, self._looks = point, False, 0

    def run(self, directions: int) -> None:
        """Compare at the point itself, and beside it where it lies on a kink."""
        base = self._point
        if not base.scale.any() or not len(base.centre):
            return
        self._at(base, directions)
        if self._beside or self._undecided():
            for _ in range(2):
                self._at(base.shifted(self._generator), directions)
        undecided = self._undecided()
        if undecided and undecided == [m for m in self._modes if self._offered(m)]:
            raise self._too_coarse()
        for mode in undecided:
            self._findings.skipped[self._label(mode)] = "differences do not decide"

    def _label(self, mode: str) -> str:
        return mode if self._order == 1 else f"{mode}, order {self._order}"

    def _offered(self, mode: str) -> bool:
        return self._label(mode) not in self._findings.skipped

    def _undecided(self) -> list[str]:
        decided = self._findings.decided
        offered = [mode for mode in self._modes if self._offered(mode)]
        return [mode for mode in offered if not decided.get(self._label(mode))]

    def _too_coarse(self) -> UnsupportedModelError:
        lowest = self._point.problem.lowest
        why = (
            "its values are not smooth at any step tried"
            if lowest is self._point.dtype
            else f"it computes in {lowest} inside, which differences cannot see through"
        )
        return UnsupportedModelError(
            f"function cannot be decided on: {why}. Pass reference=, a plain version of"
            " it that computes in float64"
        )

    def _directions(self, point: Point, number: int) -> Iterator[Tensor]:
        """Yield directions of all variables, then of each alone.

        A small derivative would be lost beside another variable's large one.
        """
        for _ in range(number):
            yield point.direction(self._generator)
        for variable in range(len(point.inputs) if len(point.inputs) > 1 else 0):
            whole = point.direction(self._generator)
            alone = torch.zeros_like(whole)
            alone[point.block(variable)] = whole[point.block(variable)]
            yield alone

    def _at(self, point: Point, directions: int) -> None:
        self._point = point
        for direction in self._directions(point, directions):
            if not direction.any():
                continue
            found = point.along(direction)
            if found.jumps:
                self._note_jump(direction)
            self._note_kinks(found)
            self._note_unused(direction, found)
            for mode in self._modes:
                if self._offered(mode):
                    self._one(mode, direction, found)

    def _note_kinks(self, found: Differences) -> None:
        kinked = torch.nonzero(found.kinked)[:, 0]
        if len(kinked):
            self._beside = True
            part, index = place(self._point.outputs, int(kinked[0]))
            more = f" and {len(kinked) - 1} more entries" if len(kinked) > 1 else ""
            where = "beside the given values" if self._point.moved else "at them"
            self._findings.kinks.setdefault(
                f"{named(part.name, index)}{more} along a random direction, {where}"
            )

    def _note_jump(self, direction: Tensor) -> None:
        """Refuse variables that are codes, such as targets of ±1 in floating point."""
        point = self._point
        self._beside = True
        if self._order == 2:  # the gradient of a kink jumps, whatever it depends on
            self._findings.notes.setdefault("the first derivative jumps, as at a kink")
            return
        alone = [torch.zeros_like(direction) for _ in point.inputs]
        for number, only in enumerate(alone):
            only[point.block(number)] = direction[point.block(number)]
        moving = [n for n, only in enumerate(alone) if only.any()]
        jumping = [n for n in moving if point.along(alone[n]).jumps]
        names = [point.inputs[n].name for n in jumping]
        if names and not point.moved and len(jumping) < len(point.inputs):
            raise jump(names, [p.name for p in point.inputs])
        self._findings.notes.setdefault(
            f"it jumps with {', '.join(names or ['all together'])}"
        )

    def _note_unused(self, direction: Tensor, found: Differences) -> None:
        if self._order == 1 and not found.after.any() and not found.before.any():
            part, _ = place(self._point.inputs, int(torch.nonzero(direction)[0]))
            self._findings.notes.setdefault(f"nothing depends on {part.name}")

    def _one(self, mode: str, direction: Tensor, found: Differences) -> None:
        compare = self._reverse if mode == "reverse" else self._forward
        try:
            compare(direction, found)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if isinstance(error, GradkitError):
                raise
            reason = not_offered(error)
            if reason is None:
                raise raised(mode, self._order, error) from error
            self._findings.skipped[self._label(mode)] = reason

    def _reverse(self, direction: Tensor, found: Differences) -> None:
        point, slopes = self._point, found.central
        cotangent = point.cotangent(slopes.value, self._generator)
        cotangent[slopes.error.isinf()] = 0.0
        gradient = point.gradient(cotangent)
        broken = torch.nonzero(~gradient.isfinite() & (direction != 0))[:, 0]
        if len(broken):
            direction, found = self._without(broken, direction, cotangent)
            slopes = found.central
        used = direction != 0
        terms = gradient[used] * direction[used]
        slope = found.dot(cotangent).central
        analytic, numerical = float(terms.sum()), float(slope.value)
        allowed = SAFETY * float(slope.error) + point.rounding(terms)
        typical = float((cotangent.abs() * slopes.value.nan_to_num(0.0).abs()).sum())
        size = float(cotangent.abs() @ found.size)
        if abs(analytic - numerical) <= allowed:
            if allowed <= DECISIVE * max(typical, size):
                apart = abs(analytic - numerical)
                self._findings.record(self._label("reverse"), apart, allowed, typical)
            return
        if self._enough(found):
            return
        entry = pin_reverse(point, direction, cotangent)
        again = [f.dot(cotangent).central for f in self._again(direction)]
        self._judge("reverse", entry, found, analytic, agreed(again))

    def _without(
        self, broken: Tensor, direction: Tensor, cotangent: Tensor
    ) -> tuple[Tensor, Differences]:
        """Look at one entry that is not finite; leave out all, if it may be so."""
        draw = torch.randint(len(broken), (), generator=self._generator)
        one = torch.zeros_like(direction)
        one[broken[draw]] = direction[broken[draw]]
        entry = pin_reverse(self._point, one, cotangent)
        nothing = torch.zeros(1, dtype=torch.float64)
        found = self._point.along(one)
        self._judge("reverse", entry, found, 0.0, Slope(nothing, nothing))
        rest = direction.clone()
        rest[broken] = 0.0
        return rest, self._point.along(rest)

    def _forward(self, direction: Tensor, found: Differences) -> None:
        point, slopes = self._point, found.central
        analytic = point.tangent(direction)
        apart = (analytic - slopes.value).abs()
        allowed = SAFETY * slopes.error + point.rounding_of(slopes.value)
        allowed = torch.where(allowed.isnan(), torch.inf, allowed)
        wrong = ~(apart <= allowed)
        if not wrong.any():
            sizes = torch.maximum(slopes.value.abs(), found.size)
            good = allowed <= DECISIVE * sizes
            if good.any():
                parts = torch.where(good, apart / allowed, -1.0).nan_to_num(0.0)
                worst = int(parts.argmax())
                rows = apart, allowed, slopes.value.abs()
                numbers = (float(row[worst]) for row in rows)
                self._findings.record(self._label("forward"), *numbers)
            return
        if self._enough(found):
            return
        excess = torch.where(wrong, (apart / allowed).nan_to_num(torch.inf), -1.0)
        k = int(excess.argmax())
        entry = pin_forward(point, direction, k)
        again = agreed([f.central for f in self._again(direction)])
        closer = Slope(again.value[k : k + 1], again.error[k : k + 1])
        self._judge("forward", entry, found, float(analytic[k]), closer)

    def _enough(self, found: Differences) -> bool:
        """Whether so many kinks were looked at that the rest is left to places beside.

        Halving down to an entry takes many evaluations.
        """
        if self._point.moved or not found.kinked.any():
            return False
        self._looks += 1
        return self._looks > _MOST_LOOKS

    def _again(self, direction: Tensor) -> list[Differences]:
        return [self._point.along(direction, start=start) for start in STARTS]

    def _judge(
        self,
        mode: str,
        entry: Entry,
        found: Differences,
        analytic: float,
        closer: Slope,
    ) -> None:
        """Raise, or say why the difference is none."""
        point, order, truth = self._point, self._order, self._compared_with
        if entry.verdict == "wrong" and entry.settled:
            around = self._around(mode, entry)
            raise mismatch(entry, mode, order, truth, moved=point.moved, around=around)
        if entry.verdict == "kink":
            self._beside = True
            low, high = sorted(entry.sides or (0.0, 0.0))
            between = f"on the two sides {low:.6g} and {high:.6g}"
            self._findings.kinks.setdefault(
                f"{entry.text} is {entry.analytic:.6g}, {between}"
            )
        elif entry.verdict == "edge":
            self._beside = True
            self._findings.notes.setdefault(
                f"{entry.text} is {entry.analytic:.6g}, where differences settle on"
                " nothing; it was left out"
            )
        else:
            self._beside = True
            numerical, allowed = float(closer.value), SAFETY * float(closer.error)
            # Kinks all around make the estimates of the error estimates too.
            settled = allowed <= DECISIVE * abs(numerical)
            if found.kinked.any() or point.coarse or not settled:
                return
            if not abs(analytic - numerical) <= allowed:
                names = [p.name for p in point.inputs]
                numbers = torch.tensor([analytic, numerical, allowed])
                raise unpinned(names, mode, order, truth, numbers)

    def _around(self, mode: str, entry: Entry) -> Around | None:
        """Return entries beside a wrong one, if the function has them."""
        point, generator = self._point, self._generator
        try:
            if mode == "reverse":
                return around_reverse(point, entry.d, generator)
            return around_forward(point, entry.k, point.direction(generator))
        except Exception:  # a hint is not worth another error than the one found
            return None
