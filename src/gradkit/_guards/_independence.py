"""Whether samples are independent, proved on the actual batch.

A pullback is linear, and multiplying by a signed power of two commutes with
rounding. So when sample ``n``'s cotangent is multiplied by its own power of two
``w[n]``, the gradient at sample ``n`` must be ``w[n]`` times the first one, bit
for bit. Anything that reaches sample ``n`` from sample ``m`` carries ``w[m]``
instead and is seen. Comparing a batch with its parts is weaker: it needs a
tolerance, and passes couplings that need more than two samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradkit.errors import SampleDependenceError

__all__ = ["coupled_sample", "random_cotangent", "refuse_coupling", "same", "scaled_by"]

Pull = Callable[[Tensor], tuple[Tensor, ...]]


def _generator(device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator of our own, seeded by the system."""
    generator = torch.Generator(device=device)
    generator.seed()
    return generator


def random_cotangent(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return a random cotangent without small entries, in ``like``'s dtype.

    Drawn on the CPU from a generator of its own, so that no state of the caller's
    moves.
    """
    generator = _generator()
    size = (
        torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") + 0.5
    )
    sign = torch.randint(0, 2, shape, generator=generator, device="cpu") * 2 - 1
    return (size * sign).to(device=like.device, dtype=like.dtype)


def _powers(
    samples: int, dtype: torch.dtype, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield vectors of signed powers of two; any two samples differ in one of them.

    There are only so many powers: the digits of a random numbering choose them, and
    one vector is enough for 50 samples.
    """
    reach = 3 if dtype == torch.float16 else 12
    exponents = torch.arange(-reach, reach + 1, dtype=torch.float64, device="cpu")
    pool = torch.cat([2.0**exponents, -(2.0**exponents)])
    numbers = torch.randperm(samples, generator=generator, device="cpu")
    while True:
        order = torch.randperm(len(pool), generator=generator, device="cpu")
        yield pool[order][numbers % len(pool)]
        if int(numbers.max()) < len(pool):
            return
        numbers = numbers // len(pool)


def _signs(samples: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield vectors of signs of which, for any two samples, one tells them apart."""
    numbers = torch.randperm(samples, generator=generator, device="cpu")
    for bit in range(max(samples - 1, 1).bit_length()):
        yield 1.0 - 2.0 * ((numbers >> bit) & 1).to(torch.float64)
    for _ in range(2):
        drawn = torch.randint(0, 2, (samples,), generator=generator, device="cpu")
        yield drawn.double() * 2 - 1


def scaled_by(tensor: Tensor, weights: Tensor) -> Tensor:
    """Return each sample's part times its own weight."""
    shape = (-1, *[1] * (tensor.ndim - 1))
    return tensor * weights.to(device=tensor.device, dtype=tensor.dtype).reshape(shape)


def same(first: Tensor, second: Tensor) -> Tensor:
    """Return where two tensors are equal, NaN being equal to NaN."""
    return (first == second) | ((first != first) & (second != second))


def _differing(
    base: tuple[Tensor, ...], other: tuple[Tensor, ...], weights: Tensor
) -> tuple[int, int] | None:
    """Return (source, sample) of the first entry that did not scale."""
    for source, (first, second) in enumerate(zip(base, other, strict=True)):
        equal = same(scaled_by(first, weights), second)
        if not bool(equal.all()):
            rows = equal.reshape(equal.shape[0], -1).all(1)
            return source, int((~rows).nonzero()[0])
    return None


def _lost(base: tuple[Tensor, ...], weights: Tensor) -> bool:
    """Whether a weight takes an entry out of its dtype's range.

    There zero equals zero, and infinity infinity, whatever reached the sample.
    """
    for first in base:
        info = torch.finfo(first.dtype)
        size = scaled_by(first, weights).abs()
        last = 4 * info.smallest_normal * info.eps
        gone = (size < last) & (first != 0)
        if bool((gone | (size.isinf() & ~first.isinf())).any()):
            return True
    return False


def _close(base: tuple[Tensor, ...], other: tuple[Tensor, ...], w: Tensor) -> bool:
    """Whether two pull-backs agree to rounding, sample by sample."""
    for first, second in zip(base, other, strict=True):
        scaled = scaled_by(first, w)
        gap = (scaled - second).abs().reshape(first.shape[0], -1).amax(1)
        size = scaled.abs().reshape(first.shape[0], -1).amax(1)
        # Without reproducible sums, neighbours of very different weight would hide
        # in one another's rounding, so weights are signs here.
        if bool((gap > 256 * torch.finfo(first.dtype).eps * size).any()):
            return False
    return True


def coupled_sample(
    pull: Pull, cotangent: Tensor, *, base: tuple[Tensor, ...] | None = None
) -> tuple[int, int] | None:
    """Return ``(source, sample)`` that another sample reaches, or ``None``.

    Sources without entries are not counted.

    Args:
        pull: From a cotangent with the samples first to tensors with the samples
            first.
        cotangent: The cotangent to weight.
        base: Its pull-back, if it is known already.
    """
    samples = cotangent.shape[0]
    if samples < 2 or not cotangent.numel():
        return None
    generator = _generator()
    base = pull(cotangent) if base is None else base
    filled = [i for i, b in enumerate(base) if b.numel()]
    if not filled:
        return None
    base = tuple(base[i] for i in filled)

    def ask(weighted: Tensor) -> tuple[Tensor, ...]:
        found = pull(weighted)
        return tuple(found[i] for i in filled)

    dtype = min((b.dtype for b in (cotangent, *base)), key=lambda d: torch.finfo(d).max)
    for weights in _powers(samples, dtype, generator):
        found = _differing(base, ask(scaled_by(cotangent, weights)), weights)
        if found is not None or _lost(base, weights):
            break
    else:
        return None
    # Underflow and overflow break the scaling by powers, never that by signs.
    ones = torch.ones(samples, dtype=torch.float64, device="cpu")
    reproducible = _differing(base, ask(cotangent), ones) is None
    for signs in _signs(samples, generator):
        other = ask(scaled_by(cotangent, signs))
        found = _differing(base, other, signs)
        if found and (reproducible or not _close(base, other, signs)):
            return found
    return None


def refuse_coupling(pull: Pull, cotangent: Tensor, what: str, advice: str) -> None:
    """Raise if one sample reaches another."""
    found = coupled_sample(pull, cotangent)
    if found is None:
        return
    raise SampleDependenceError(
        f"samples must be independent; {what} of sample {found[1]} depends on another"
        f" sample of the batch. {advice}",
        sample=found[1],
    )
