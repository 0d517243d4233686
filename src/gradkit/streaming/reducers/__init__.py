"""Folds rows that come batch by batch into one value, in constant memory.

| | of the rows of all samples |
|---|---|
| `Sum`, `Mean`, `Variance`, `SecondMoment` | also of a `ParameterJacobian`'s |
| `TopK` | the samples with the largest numbers, or the smallest |
| `Histogram` | how many entries lie between given edges |
| `Gram` | the inner products of all rows; the one that keeps them |
| `OuterProduct` | the sum of each row's product with itself |
| `NoiseScale` | the batch size at which noise and gradient are even, of gradients |
| `Checkpointed` | what another gives, kept on disk meanwhile |

Each is a ``Reducer``: settings, and functions of a state that lies beside it.
"""

from typing import TYPE_CHECKING

from gradkit._offered import offering
from gradkit.streaming.reducers._checkpointed import Checkpointed
from gradkit.streaming.reducers._gram import Gram
from gradkit.streaming.reducers._histogram import Counts, Histogram
from gradkit.streaming.reducers._moments import Mean, SecondMoment, Sum
from gradkit.streaming.reducers._noise import NoiseScale, NoiseScaleEstimate
from gradkit.streaming.reducers._outer import OuterProduct
from gradkit.streaming.reducers._reducer import Place, Reducer
from gradkit.streaming.reducers._top import Top, TopK
from gradkit.streaming.reducers._variance import Variance

__all__ = [
    "Checkpointed",
    "Counts",
    "Gram",
    "Histogram",
    "Mean",
    "NoiseScale",
    "NoiseScaleEstimate",
    "OuterProduct",
    "Place",
    "Reducer",
    "SecondMoment",
    "Sum",
    "Top",
    "TopK",
    "Variance",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(globals())
