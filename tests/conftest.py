"""Where and in which precision the suite runs, and readable test ids.

The same tests run elsewhere through the environment:
``GRADKIT_TEST_DEVICE`` (default ``cpu``; ``cuda`` for an accelerator),
``GRADKIT_TEST_DTYPE`` (default ``float64``; ``float32``) and
``GRADKIT_TEST_SEED`` (default ``0``).
"""

from __future__ import annotations

import os
import random
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# Asserts in the shared modules explain themselves as those in the tests do.
SHARED = [p.stem for p in Path(__file__).parent.glob("*.py") if p.stem[:5] != "test_"]
pytest.register_assert_rewrite(*sorted(SHARED))

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _device_from_environment() -> torch.device:
    device = torch.device(os.environ.get("GRADKIT_TEST_DEVICE", "cpu"))
    # A typing error or a missing driver must not pass as a run on the CPU.
    torch.empty(0, device=device)
    return device


def _dtype_from_environment() -> torch.dtype:
    name = os.environ.get("GRADKIT_TEST_DTYPE", "float64")
    if name not in DTYPES:
        raise pytest.UsageError(
            f"GRADKIT_TEST_DTYPE is {name!r}; it may be: {', '.join(DTYPES)}"
        )
    return DTYPES[name]


DEVICE = _device_from_environment()
DTYPE = _dtype_from_environment()
SEED = int(os.environ.get("GRADKIT_TEST_SEED", "0"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Return the device that the suite runs on."""
    return DEVICE


@pytest.fixture(scope="session")
def dtype() -> torch.dtype:
    """Return the floating dtype that the suite runs in."""
    return DTYPE


@pytest.fixture
def seed() -> int:
    """Return the seed that every test starts from."""
    return SEED


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> None:
    # Each test draws the same numbers whichever tests ran before it.
    random.seed(seed)
    # numpy's global generator too: models under test draw from it.
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def pytest_report_header() -> str:
    """Say what the run's figures are for."""
    return (
        f"gradkit: device {DEVICE}, dtype {str(DTYPE).removeprefix('torch.')},"
        f" seed {SEED}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )


def pytest_make_parametrize_id(
    config: pytest.Config, val: object, argname: str
) -> str | None:
    """Name methods, cases, checks and dtypes as people do, not by their position."""
    del config, argname
    return readable(val)


def readable(value: Any) -> str | None:
    """Return the name a value goes by in test ids, or ``None`` where it has none."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        # A lambda's name says less than its place in the list.
        return None if value.__name__ == "<lambda>" else value.__name__
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else None
