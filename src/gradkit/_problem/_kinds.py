"""Kinds of tensors that have no derivative here, each refused by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    is_functorch_wrapped_tensor,
)
from torch.nn.utils.rnn import PackedSequence

from gradkit.errors import InputError

__all__ = ["refuse_kind"]

_ADVICE_ARRAY = "write torch.from_numpy(x).float()"


def refuse_kind(path: str, value: Any) -> None:
    """Refuse a value among the inputs that is of such a kind."""
    place = f"inputs{path}"
    if isinstance(value, np.ndarray):
        raise InputError(
            f"{place} must be a torch.Tensor; got a numpy.ndarray"
            f" ({value.dtype}, shape {value.shape}); {_ADVICE_ARRAY}",
            argument=place,
        )
    if isinstance(value, PackedSequence):
        raise InputError(
            f"{place} is a PackedSequence, whose first axis mixes samples and steps;"
            " pass the padded tensor and its lengths, and pack inside the model",
            argument=place,
        )
    if not isinstance(value, Tensor) or _is_usual(value):
        return
    kinds = {
        "complex": (value.is_complex(), "pass torch.view_as_real(x)"),
        "nested": (value.is_nested, "pad it to one tensor with a mask"),
        "sparse": (value.layout is not torch.strided, "pass x.to_dense()"),
        "quantized": (value.is_quantized, "pass x.dequantize()"),
        "meta": (value.device.type == "meta", "pass a tensor that holds values"),
        "distributed": (type(value).__name__ == "DTensor", "pass x.full_tensor()"),
    }
    for kind, (hit, advice) in kinds.items():
        if hit:
            raise InputError(
                f"{place} is a {kind} tensor, which is not supported; {advice}",
                argument=place,
                kind=kind,
            )
    if is_functorch_wrapped_tensor(value):
        raise InputError(
            f"{place} is inside a torch.func transform (vmap, grad, jacrev or jacfwd),"
            " through which gradkit does not differentiate; nest gradkit's own"
            " functions instead, the inner one with create_graph=True",
            argument=place,
            transformed=True,
        )


def _is_usual(value: Tensor) -> bool:
    """Whether a tensor is of no kind that is refused; quick, for the usual case."""
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_complex()
        and not value.is_quantized
        and not value.is_nested
        and not is_functorch_wrapped_tensor(value)
    )
