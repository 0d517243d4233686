"""``assert_no_trace``: each thing that a function can leave behind is named."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import gradkit as gk
from gradkit.errors import AgreementError, InputError
from gradkit.testing import assert_no_trace


def subject() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model.eval()
    model.register_module("frozen", nn.Linear(4, 2))
    model.get_submodule("frozen").requires_grad_(False)
    return model


def backward(model: Any, x: Tensor) -> None:
    model(x).sum().backward()


def input_flag(model: Any, x: Tensor) -> None:
    x.requires_grad_()


def flag(model: Any, x: Tensor) -> None:
    model.frozen.weight.requires_grad_()


def training(model: Any, x: Tensor) -> None:
    model[1].train()


def statistics(model: Any, x: Tensor) -> None:
    model[1].running_mean.add_(1.0)


def there_and_back(model: Any, x: Tensor) -> None:
    with torch.no_grad():
        model[0].weight.mul_(2).div_(2)


def replaced(model: Any, x: Tensor) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def through_data(model: Any, x: Tensor) -> None:
    model[0].bias.data += 1


def hook(model: Any, x: Tensor) -> None:
    model[0].register_forward_hook(lambda *_: None)


def backward_hook(model: Any, x: Tensor) -> None:
    model[0].register_full_backward_hook(lambda *_: None)


def state_hook(model: Any, x: Tensor) -> None:
    model.register_state_dict_pre_hook(lambda *_: None)


def tensor_hook(model: Any, x: Tensor) -> None:
    model[0].weight.register_hook(lambda g: g)


def attribute(model: Any, x: Tensor) -> None:
    model[0].cache = x


def attribute_gone(model: Any, x: Tensor) -> None:
    del model[0].in_features


def tensor_attribute(model: Any, x: Tensor) -> None:
    model[0].weight.grad_sample = x


def submodule(model: Any, x: Tensor) -> None:
    model.add_module("extra", nn.Identity())


def input_values(model: Any, x: Tensor) -> None:
    x.add_(1)


def torch_state(model: Any, x: Tensor) -> None:
    torch.rand(3)


def python_state(model: Any, x: Tensor) -> None:
    random.random()


def numpy_state(model: Any, x: Tensor) -> None:
    np.random.rand()


def grad_mode(model: Any, x: Tensor) -> None:
    torch.set_grad_enabled(False)


def default_dtype(model: Any, x: Tensor) -> None:
    torch.set_default_dtype(torch.float64)


def anomaly(model: Any, x: Tensor) -> None:
    torch.autograd.set_detect_anomaly(True)


def fast_path(model: Any, x: Tensor) -> None:
    torch.backends.mha.set_fastpath_enabled(False)


def autocast_cache(model: Any, x: Tensor) -> None:
    torch.set_autocast_cache_enabled(False)


KEPT: list[Any] = []


def global_hook(model: Any, x: Tensor) -> None:
    KEPT.append(register_module_forward_hook(lambda *_: None))


def graph(model: Any, x: Tensor) -> None:
    KEPT.append(model(x))


TRACES: tuple[tuple[Callable[..., None], str], ...] = (
    (backward, r"the gradient of 0.weight changed \(None, now float32 \(4, 3\)"),
    (input_flag, r"requires_grad of inputs changed \(False, now True\)"),
    (flag, r"requires_grad of frozen.weight changed"),
    (training, r"1.training changed \(False, now True\)"),
    (statistics, r"the values of 1.running_mean changed \(sum 0, now sum 4\)"),
    (there_and_back, r"left 1 trace: the version of 0.weight, which a pending"),
    (replaced, r"0.weight changed"),
    (through_data, r"the values of 0.bias changed"),
    (hook, r"forward hooks of '0' changed \(0, now 1\)"),
    (backward_hook, r"backward hooks of '0' changed"),
    (state_hook, r"state dict pre hooks of the model changed"),
    (tensor_hook, r"hooks of 0.weight changed"),
    (attribute, r"0.cache was added"),
    (attribute_gone, r"0.in_features is gone"),
    (tensor_attribute, r"0.weight.grad_sample was added"),
    (submodule, r"extra was added"),
    (input_values, r"the values of inputs changed"),
    (torch_state, r"the random state of torch moved"),
    (python_state, r"the random state of random moved"),
    (numpy_state, r"the random state of numpy.random moved"),
    (grad_mode, r"grad mode changed \(True, now False\)"),
    (default_dtype, r"the default dtype changed"),
    (anomaly, r"anomaly mode changed"),
    (fast_path, r"attention's fast path changed"),
    (autocast_cache, r"autocast's cache changed"),
    (global_hook, r"torch's global forward hooks changed"),
    (graph, r"a tensor of shape \(5, 4\) stays alive on an autograd graph"),
)


@pytest.fixture(autouse=True)
def _settings() -> Any:
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.autograd.set_detect_anomaly(False)
    torch.backends.mha.set_fastpath_enabled(True)
    torch.set_autocast_cache_enabled(True)
    for kept in KEPT:
        if hasattr(kept, "remove"):
            kept.remove()
    KEPT.clear()


@pytest.mark.parametrize(
    ("function", "text"), TRACES, ids=[f.__name__ for f, _ in TRACES]
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_trace_is_named(function: Callable[..., None], text: str) -> None:
    with pytest.raises(AgreementError, match=text) as caught:
        assert_no_trace(function, subject(), torch.ones(5, 3))
    assert str(caught.value).startswith(f"assert_no_trace: {function.__name__} left ")
    assert any(caught.value.changes)


def test_a_function_that_raises_may_leave_none_either() -> None:
    def function(model: Any, x: Tensor) -> None:
        model.train()
        raise KeyError("x")

    with pytest.raises(AgreementError, match=r"raised KeyError and left .*training"):
        assert_no_trace(function, subject(), torch.ones(5, 3))

    def clean(model: Any, x: Tensor) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        assert_no_trace(clean, subject(), torch.ones(5, 3))


@pytest.mark.parametrize(
    "function", [gk.jacobian, gk.input_gradients, gk.parameter_jacobian]
)
def test_gradkit_leaves_none(function: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    assert assert_no_trace(function, model, torch.ones(5, 3)) is not None


def test_the_result_may_hang_on_a_graph() -> None:
    def function(model: Any, inputs: Any) -> Any:
        return {"outputs": [model(inputs["x"])]}

    result = assert_no_trace(function, nn.Linear(3, 2), {"x": torch.ones(5, 3)})
    assert result["outputs"][0].requires_grad


def test_generators_that_a_model_holds() -> None:
    model = nn.Linear(3, 2)
    vars(model)["draws"] = torch.Generator()
    with pytest.raises(AgreementError, match="random state of a Generator of the mod"):
        assert_no_trace(
            lambda m, x: torch.rand(2, generator=m.draws), model, torch.ones(2)
        )


def test_function_must_be_callable() -> None:
    with pytest.raises(InputError, match="assert_no_trace: function must be callable"):
        assert_no_trace(nn, nn.Linear(3, 2), torch.ones(2, 3))  # pyright: ignore
