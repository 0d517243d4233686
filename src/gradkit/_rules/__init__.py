"""The rules, one file for each family of operations; a new one is one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gradkit._rules._activation import PRELU
from gradkit._rules._bilinear import BILINEAR
from gradkit._rules._broadcast import (
    ADD,
    ADDCMUL,
    DIVIDE,
    MULTIPLY,
    REVERSED_SUBTRACT,
    SUBTRACT,
)
from gradkit._rules._convolution import (
    CONVOLUTION,
    CONVOLUTION_OF_ANY_KIND,
    TRANSPOSED_CONVOLUTION,
)
from gradkit._rules._einsum import EINSUM
from gradkit._rules._embedding import (
    EMBEDDING,
    EMBEDDING_BAG,
    INDEX_SELECT,
    LOOK_UP,
)
from gradkit._rules._expand import EXPAND
from gradkit._rules._joining import CAT, REPEAT, STACK, WHERE, WHERE_OF_INPUT
from gradkit._rules._linear import LINEAR
from gradkit._rules._normalisation import (
    BATCH_NORM,
    GROUP_NORM,
    INSTANCE_NORM,
    LAYER_NORM,
    RMS_NORM,
)
from gradkit._rules._products import ADDMM, BADDBMM, BMM, MATMUL, MM, MV, RMATMUL
from gradkit._rules._rule import Rule

__all__ = ["RULES"]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            ADD,
            ADDCMUL,
            ADDMM,
            BADDBMM,
            BATCH_NORM,
            BILINEAR,
            BMM,
            CAT,
            CONVOLUTION,
            CONVOLUTION_OF_ANY_KIND,
            DIVIDE,
            EINSUM,
            EMBEDDING,
            EMBEDDING_BAG,
            EXPAND,
            GROUP_NORM,
            INDEX_SELECT,
            INSTANCE_NORM,
            LAYER_NORM,
            LINEAR,
            LOOK_UP,
            MATMUL,
            MM,
            MULTIPLY,
            MV,
            PRELU,
            REPEAT,
            REVERSED_SUBTRACT,
            RMATMUL,
            RMS_NORM,
            STACK,
            SUBTRACT,
            TRANSPOSED_CONVOLUTION,
            WHERE,
            WHERE_OF_INPUT,
        )
    }
)
