"""What came of drawing a model's weights anew."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

__all__ = ["RandomizationReport"]


@dataclasses.dataclass(frozen=True, eq=False)
class RandomizationReport:
    """How alike maps stayed while layers were drawn anew; true if they did not.

    Attributes:
        method: Whose maps they are.
        order: ``"cascade"`` or ``"independent"``.
        layers: The names of ``L`` layers, in the order in which they were drawn.
        rank_correlations: ``(L, N)``, Spearman's, of the signed maps.
        magnitude_correlations: ``(L, N)``, the same of their magnitudes. They are high
            for what is multiplied by the input, whatever the model.
        similarities: ``(L, N)``, SSIM; NaN where maps are no pictures.
        maps: ``(L + 1, N, *in)``; the first is the trained model's.
        threshold: From which mean rank correlation on a map does not depend.

    Example:
        >>> import torch
        >>> import gradkit as gk
        >>> layer, x = torch.nn.Linear(3, 2), torch.rand(5, 3)
        >>> report = gk.saliency.randomization_check("gradient", layer, x, 1)
        >>> report.layers, report.rank_correlations.shape, report.maps.shape
        (('',), torch.Size([1, 5]), torch.Size([2, 5, 3]))
        >>> bool(report) == (report.correlation < report.threshold)
        True
    """

    method: str
    order: str
    layers: tuple[str, ...]
    rank_correlations: Tensor
    magnitude_correlations: Tensor
    similarities: Tensor
    maps: Tensor
    threshold: float

    @property
    def correlation(self) -> float:
        """The mean over the layers of the median rank correlation of the samples."""
        return float(_medians(self.rank_correlations).mean())

    @property
    def depends(self) -> bool:
        """Whether the map depends on what the model has learned."""
        return self.correlation < self.threshold

    def __bool__(self) -> bool:
        return self.depends

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        columns = (_medians(t).tolist() for t in self._measures)
        rows = zip(self.layers, *columns, strict=True)
        names = ("drawn anew", "rank correlation", "of magnitudes", "SSIM")
        width = max(len(name or "(the model)") for name in (*self.layers, names[0]))
        lines = [f"{names[0]:<{width}}  {names[1]}  {names[2]}    {names[3]}"]
        for layer, *values in rows:
            cells = "  ".join(
                f"{v:>{n}.2f}" for v, n in zip(values, (16, 13, 6), strict=True)
            )
            lines.append(f"{layer or '(the model)':<{width}}  {cells}")
        verdict = "depends" if self.depends else "does not depend"
        relation = "below" if self.depends else "not below"
        lines.append(
            f"{self.method} {verdict} on what the model has learned: the mean rank"
            f" correlation {self.correlation:.2f} is {relation} {self.threshold:g}"
        )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the medians over the samples and the verdict, as JSON has them.

        Returns:
            Every field but ``maps`` by its name, and ``correlation`` and ``depends``.
            The correlations and similarities are ``L`` numbers each.
        """
        ranks, magnitudes, similarities = (_medians(t).tolist() for t in self._measures)
        return {
            "method": self.method,
            "order": self.order,
            "layers": list(self.layers),
            "rank_correlations": ranks,
            "magnitude_correlations": magnitudes,
            "similarities": similarities,
            "correlation": self.correlation,
            "threshold": self.threshold,
            "depends": self.depends,
        }

    @property
    def _measures(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.rank_correlations, self.magnitude_correlations, self.similarities


def _medians(values: Tensor) -> Tensor:
    # Not torch's median, which is the lower of the two middle ones.
    return values.double().quantile(0.5, dim=1)
