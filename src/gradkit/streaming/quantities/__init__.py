"""Ready-made functions of a batch, one row per sample, for ``stream`` and ``reduce``.

| | each sample's rows |
|---|---|
| `loss` | the loss |
| `gradient_norm` | the loss, and the norm of its gradient by the parameters |
| `grand`, `el2n` | scores of how much there is to learn from it |
| `projected_gradients` | its gradient in a few random directions |
| `gradients` | its gradient, for `gk.reduce` |
| `jacobian_norm`, `spectral_norm` | how strongly the outputs move with the input |

`noise_scale` takes a loader as well, and gives the batch size at which noise and
gradient are even.

Each of the others takes a model and gives a ``Quantity``, which takes batches as
loaders give them: ``(inputs, targets)``, ``{"input_ids": ..., "labels": ...}``, or what
``split=`` reads.
"""

from typing import TYPE_CHECKING

from gradkit._offered import offering
from gradkit.streaming.quantities._gradients import gradient_norm, gradients
from gradkit.streaming.quantities._jacobians import jacobian_norm, spectral_norm
from gradkit.streaming.quantities._losses import loss
from gradkit.streaming.quantities._noise import noise_scale
from gradkit.streaming.quantities._projections import projected_gradients
from gradkit.streaming.quantities._quantity import Quantity
from gradkit.streaming.quantities._scores import el2n, grand

__all__ = [
    "Quantity",
    "el2n",
    "gradient_norm",
    "gradients",
    "grand",
    "jacobian_norm",
    "loss",
    "noise_scale",
    "projected_gradients",
    "spectral_norm",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(globals())
