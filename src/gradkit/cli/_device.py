"""``--device``: where a command computes."""

from __future__ import annotations

import torch

from gradkit.cli._command import UsageError

__all__ = ["device_of"]

_MEANT_CUDA = ("gpu", "nvidia", "cude", "cuda0")


def device_of(name: str) -> torch.device:
    """Return the device of a name, proved to hold values.

    Raises:
        UsageError: There is no such device, or it cannot be used.
    """
    try:
        device = torch.device(name)
        # Names of devices that are not there, or that hold no values, pass so far.
        torch.zeros(1, device=device).item()
    except Exception as error:  # each backend has its own
        reason = str(error).strip().partition("\n")[0]
        near = name.lower().partition(":")[0]
        hint = " (did you mean cuda?)" if near in _MEANT_CUDA else ""
        raise UsageError(
            f"argument --device: cannot compute on {name!r}{hint}: {reason}"
        ) from error
    return device
