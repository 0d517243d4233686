"""Wrong guesses are answered by the way to what was meant."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import pickle
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk

ANY: Any = gk
X, Y = torch.randn(3, 4), torch.tensor([0, 1, 1])


def model() -> nn.Module:
    return nn.Linear(4, 2)


# -- tokens that are scored at their own positions -------------------------------------


class Tokens(nn.Module):
    """A language model, also of labels that it is given beside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.head = nn.Embedding(7, 3), nn.Linear(3, 7)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.embedded(ids))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("labels", [IDS, IDS.where(IDS > 2, -100)])
def test_own_tokens_as_labels_are_told(labels: Tensor) -> None:
    with pytest.warns(UserWarning, match="token_loss has .* pass shift=True") as caught:
        gk.per_sample_gradients(Tokens(), IDS, gk.objectives.token_loss(labels))
    assert len(caught) == 1


def test_other_tokens_are_not_told() -> None:
    loss, network = gk.objectives.token_loss, Tokens()
    gk.per_sample_gradients(network, IDS, loss(IDS, shift=True))
    gk.per_sample_gradients(network, IDS, loss(IDS.roll(1, 1)))
    gk.per_sample_gradients(network, IDS, loss(IDS.where(IDS < 0, -100)))
    gk.per_sample_gradients(network, torch.ones_like(IDS), loss(torch.ones_like(IDS)))
    both = {"ids": IDS.roll(1, 1), "labels": IDS}
    gk.per_sample_gradients(network, both, loss(IDS), of="logits")


def test_own_tokens_may_be_meant() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "token_loss has")
        gk.per_sample_gradients(Tokens(), IDS, gk.objectives.token_loss(IDS))


def test_labels_among_the_inputs() -> None:
    both = {"ids": IDS, "labels": IDS}
    with pytest.raises(gk.errors.InputError) as caught:
        gk.per_sample_gradients(Tokens(), both, gk.objectives.output_sum)
    assert 'leave them out, and pass of="logits" with gk.objectives.token_loss' in str(
        caught.value
    )


# -- names of arguments ----------------------------------------------------------------

ROWS = gk.per_sample_gradients(model(), X, gk.objectives.output_sum)
LOSS = "pass objective=gk.objectives.sample_loss(criterion, y)"
MEMORY = "here it is max_memory=, in bytes"
KEYWORDS: dict[str, tuple[Any, str, str]] = {
    **{
        f"per_sample_gradients {name}": (gk.per_sample_gradients, name, text)
        for name, text in {
            **dict.fromkeys(("loss_fn", "criterion", "loss", "y", "labels"), LOSS),
            **dict.fromkeys(("target", "targets"), LOSS),
            **dict.fromkeys(("batch_size", "microbatch"), MEMORY),
            "reduction": "no sample's number is reduced with others",
            "wrt": "here it is 'parameters'",
            "layers": "here it is 'parameters', names or globs",
            "with_values": "rows.objective_values and rows.outputs",
        }.items()
    },
    "input_gradients layer": (
        gk.input_gradients,
        "layer",
        "here it is 'wrt', the layer to differentiate by; a layer or neuron to"
        " differentiate itself is chosen by of=",
    ),
    "input_gradients neuron": (gk.input_gradients, "neuron", "pass objective=3"),
    "input_gradients index": (gk.input_gradients, "index", "pass objective=3"),
    "input_gradients target": (gk.input_gradients, "target", "pass objective=3"),
    "sample_loss labels": (
        gk.objectives.sample_loss,
        "labels",
        "sample_loss() got an unexpected keyword argument 'labels'; here it is"
        " 'targets'",
    ),
    "sample_loss target": (gk.objectives.sample_loss, "target", "'targets'"),
    **{
        f"project {n}": (ROWS.project, n, "ParameterJacobian.project() got an")
        for n in ("proj_dim", "dim", "k", "n_components")
    },
    "project to": (ROWS.project, "proj_dim", "here it is 'size'"),
    "clipped_sum": (ROWS.clipped_sum, "max_grad_norm", "here it is 'max_norm'"),
    "norms per_layer": (ROWS.norms, "per_layer", "here it is 'per_parameter'"),
    "norms dim": (ROWS.norms, "dim", "the norm of a row is over all its entries"),
    "gram": (ROWS.gram, "trace", "rows.gram().diagonal(dim1=1, dim2=3).sum(-1)"),
    **{
        f"stream {n}": (gk.stream, n, "here it is 'store'")
        for n in ("out", "output", "folder")
    },
    **{
        f"stream {n}": (
            gk.stream,
            n,
            "nothing is ever overwritten: name another folder",
        )
        for n in ("mode", "force", "overwrite")
    },
    "batch_consistency": (
        gk.batch_consistency,
        "function",
        "here it is 'derivative', such as derivative=gk.jacobian",
    ),
}


@pytest.mark.parametrize("case", sorted(KEYWORDS))
def test_keywords(case: str) -> None:
    function, name, text = KEYWORDS[case]
    with pytest.raises(TypeError) as caught:
        function(**{name: 1})
    assert f"() got an unexpected keyword argument {name!r}; " in str(caught.value)
    assert text in str(caught.value)


def test_words_that_are_somewhat_alike_are_no_hint() -> None:
    for function, name in ((gk.stream, "writer"), (gk.jacobian, "output_shape")):
        with pytest.raises(TypeError, match=rf"unexpected .* '{name}'$"):
            function(**{name: 1})  # pyright: ignore


def test_a_projection_needs_a_seed() -> None:
    rows: Any = ROWS
    with pytest.raises(TypeError) as caught:
        rows.project(512)
    assert str(caught.value) == (
        "ParameterJacobian.project() needs seed=, such as seed=0"
    )
    with pytest.raises(TypeError, match=r"^ParameterJacobian\.project\(\) missing"):
        rows.project(seed=0)


# -- arguments in other places ---------------------------------------------------------

BATCHES = [(X, Y)]
PLACES: dict[str, tuple[Any, str]] = {
    "swapped loss": (
        lambda: ANY.objectives.sample_loss(Y, nn.CrossEntropyLoss()),
        "Write sample_loss(CrossEntropyLoss(), targets).",
    ),
    "swapped class": (
        lambda: ANY.objectives.sample_loss(Y, nn.CrossEntropyLoss),
        "Write sample_loss(CrossEntropyLoss(), targets).",
    ),
    "swapped function": (
        lambda: ANY.objectives.sample_loss(Y, F.cross_entropy),
        "Write sample_loss(cross_entropy, targets).",
    ),
    "several models": (
        lambda: ANY.quantities.grand(model(), model()),
        "grand: criterion must be a loss of outputs and targets; got the model Linear."
        " Several models go in a list, [model, other]",
    ),
    "maker": (
        lambda: ANY.stream(gk.quantities.gradient_norm, BATCHES, "unused"),
        "stream: compute must be a function of a batch; got gradient_norm, which makes"
        " one. Call it: gk.quantities.gradient_norm(model)",
    ),
    "model to stream": (
        lambda: ANY.reduce(model(), BATCHES, gk.reducers.Mean()),
        "reduce: compute must be a function of a batch; got the model Linear. Write:"
        " gk.quantities.gradient_norm(model), or lambda batch: model(batch[0])",
    ),
    **{
        f"{name} of a model": (
            lambda name=name: getattr(ANY, name)(model(), X),
            f"{name}: got the model Linear first; write gk.{name}(gk.jacobian, model,"
            " inputs)",
        )
        for name in ("compare_methods", "assert_agreement", "explain")
    },
    "consistency of a function": (
        lambda: ANY.batch_consistency(gk.jacobian, model(), X),
        "batch_consistency: got jacobian first; write gk.batch_consistency(model,"
        " inputs, derivative=gk.jacobian)",
    ),
    "a context": (
        lambda: ANY.batch_invariant(model()),
        "batch_invariant: got the model Linear first; it is a context: with"
        " gk.batch_invariant(): y = model(x)",
    ),
    "objective of two": (
        lambda: gk.per_sample_gradients(model(), X, lambda o, y: o[:, 0]),  # type: ignore
        "per_sample_gradients: objective must be a function of the outputs alone; got"
        " one that needs further arguments. Take targets from around it, lambda"
        " outputs: loss(outputs, y), or write gk.objectives.sample_loss(loss, y).",
    ),
}


@pytest.mark.parametrize("case", sorted(PLACES))
def test_places(case: str) -> None:
    call, text = PLACES[case]
    with pytest.raises(gk.errors.InputError) as caught:
        call()
    assert text in str(caught.value)


def test_losses_with_a_forward_of_their_own_are_losses() -> None:
    class Loss(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(outputs, targets, reduction="none")

    found = gk.quantities.grand(model(), Loss())((X, Y))
    assert found.shape == (3,)


# -- names of attributes ---------------------------------------------------------------

OFFERED = [getattr(gk, name) for name in gk.__all__]
MODULES = [gk, *(value for value in OFFERED if inspect.ismodule(value))]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_modules_list_what_they_offer(module: ModuleType) -> None:
    listed = [name for name in dir(module) if not name.startswith("__")]
    assert listed == sorted(module.__all__)
    assert all(hasattr(module, name) for name in dir(module))
    assert not hasattr(module, "not_there")
    assert not hasattr(module, "_not_there")
    with pytest.raises(AttributeError) as caught:
        module.qzxqzx  # noqa: B018
    text = f"module {module.__name__!r} has no attribute 'qzxqzx'"
    assert (str(caught.value), caught.value.name) == (text, "qzxqzx")
    assert caught.value.obj is module


def test_the_version_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gk.__version__ == importlib.metadata.version("gradkit")
    assert "__version__" in dir(gk)

    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    assert gk.__version__ == "unknown"


GUESSES = [
    (gk, "hessian", "write gk.jacobian(lambda x: gk.input_gradients(f, x, create"),
    (gk, "ntk", "write gk.parameter_jacobian(model, x).gram()"),
    (gk, "fisher", ".second_moment()"),
    (gk, "vjp", "gk.objectives.weighted_sum(v)"),
    (gk, "jvp", "gk.parameter_jacobian(model, x).matvec(v)"),
    *((gk, n, "gk.input_gradients") for n in ("grad", "gradient", "gradients")),
    (gk, "influence", ".gram(others)"),
    *((gk, n, "gk.per_sample_gradients") for n in ("grad_sample", "per_sample_grads")),
    (gk, "neuron_gradient", "of='layer'"),
    (gk, "jacobain", "did you mean 'jacobian'?"),
    (gk.objectives, "cross_entropy", "gk.objectives.sample_loss(F.cross_entropy, y)"),
    (gk.objectives, "loss", "gk.objectives.sample_loss(F.cross_entropy, y)"),
    (gk.quantities, "gradient_norms", "did you mean 'gradient_norm'?"),
    (gk.saliency, "Saliency", "'gradient'"),
    (gk.saliency, "IntegratedGradients", "did you mean 'integrated_gradients'?"),
    (ROWS, "norm", "did you mean 'norms'?"),
    *((ROWS, n, "rows.clipped_sum(max_norm)") for n in ("clip", "clipped")),
    *((ROWS, n, "rows.flat()") for n in ("flatten", "matrix", "to_tensor", "shape")),
    (ROWS, "var", "gk.reducers.Variance()"),
    (ROWS, "fisher", "rows.second_moment()"),
    *((ROWS, n, "rows.matvec(v)") for n in ("dot", "T")),
    (ROWS, "losses", "rows.objective_values"),
    (ROWS, "hessian", "gk.jacobian("),
]


@pytest.mark.parametrize(("owner", "name", "text"), GUESSES)
def test_attributes(owner: Any, name: str, text: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert text in str(caught.value)
    assert (caught.value.name, caught.value.obj) == (name, owner)


def test_rows_are_still_copied_and_looked_up() -> None:
    kept = pickle.loads(pickle.dumps(ROWS))
    for same in (copy.copy(ROWS), copy.deepcopy(ROWS), kept):
        assert torch.equal(same.norms(), ROWS.norms())
    rows: Any = ROWS
    assert rows.get(0) is None
    assert not hasattr(rows, "__array_interface__")
    for index, text in ((0, "(0)"), (slice(3), "(slice")):
        with pytest.raises(KeyError, match=re.escape("rows.samples" + text)):
            rows[index]
    with pytest.raises(TypeError, match=r"rows\.gram\(other\)"):
        rows @ rows  # pyright: ignore


def test_a_stored_array_is_read_first(tmp_path: Path) -> None:
    data = torch.arange(6.0).split(4)
    rows = gk.stream(lambda x: {"a": x}, data, tmp_path, progress=False)
    column: Any = rows["a"]
    assert repr(column) == "Column('a', 6 samples, float32 () a sample; [:] reads it)"
    for call, text in (
        (lambda: column.mean(), r"read it first: rows\['a'\]\[:\]\.mean"),
        (lambda: column.topk(2), r"rows\['a'\]\[:\]\.topk"),
        (lambda: column > 0, r"read it first: rows\['a'\]\[:\]$"),
        (lambda: 2 * column, r"read it first: rows\['a'\]\[:\]$"),
    ):
        with pytest.raises((AttributeError, TypeError), match=text):
            call()
    assert np.asarray(column).tolist() == [0, 1, 2, 3, 4, 5]
    assert copy.copy(column)[1] == 1


# -- batches, and what a prompt shows ---------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_a_batch_that_does_not_fit_says_how_it_was_read() -> None:
    norms = gk.quantities.gradient_norm(model())
    for batch, text in (
        ((X, Y, Y), "the batch has 3 entries: the last is taken as targets"),
        ({"x": X, "labels": Y}, "the batch has the keys 'x', 'labels'"),
    ):
        with pytest.raises(TypeError) as caught:
            norms(batch)
        if not hasattr(caught.value, "add_note"):
            continue
        # Another note says how the inputs were read.
        notes = "\n".join(vars(caught.value)["__notes__"])
        assert text in notes
        assert "split=lambda b: " in notes


def test_what_a_prompt_shows_is_short() -> None:
    for method in gk.METHODS.values():
        assert (
            repr(method) == f"Method({method.name!r}, {method.mode}: {method.summary})"
        )
    for rule in gk.RULES.values() if hasattr(gk.RULES, "values") else gk.RULES:
        assert re.fullmatch(r"Rule\('.+', rows by .*\)", repr(rule))
    assert repr(gk.shared(X)) == "shared(float32 tensor of shape (3, 4))"
    assert " at 0x" not in repr((gk.METHODS, gk.RULES))


def test_reports_are_iterated() -> None:
    report = gk.compare_methods(gk.jacobian, model(), X, methods=["loop", "vmap"])
    assert [m.name for m in report] == ["loop", "vmap"]
    assert len(report) == 2
    with pytest.raises(AttributeError, match=r"write \{m.name: m.verdict for m in rep"):
        report.verdicts  # noqa: B018  # pyright: ignore
    assert copy.copy(report).methods == report.methods


def test_an_incomplete_store_says_so(tmp_path: Path) -> None:
    def compute(x: Tensor) -> Tensor:
        if float(x[0]) > 4:
            raise RuntimeError("stop")
        return x

    data = torch.utils.data.DataLoader(torch.arange(12.0), batch_size=2)  # pyright: ignore
    with pytest.raises(RuntimeError, match="stop"):
        gk.stream(compute, data, tmp_path, identity={"x": 1}, progress=False)
    shown = repr(gk.open_rows(tmp_path))
    assert re.match(r"Rows\(\d+ of 12 samples; ", shown)
