"""``compare_methods`` and ``assert_agreement``: verdicts, places, reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradkit as gk
from footprint import Footprint
from found import Holding, doubles, weighted
from gradkit.errors import AgreementError, InputError, SampleDependenceError


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    layers = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4))
    return layers.to(dtype)


def changed(name: str, change: Any, kind: str = "inputs") -> gk.Method:
    """Return the one-hot loop, with its rows changed."""
    base: Any = gk.METHODS["onehot" if kind == "inputs" else "rows"]

    def rows(task: Any) -> Iterator[Any]:
        for block in getattr(base, kind)(task):
            values = tuple(change(v.clone(), block) for v in block.values)
            yield block._replace(values=values)

    by: dict[str, Any] = {kind: rows}
    return gk.Method(name, "reverse", "for a test", **by)


QUESTIONS = {
    gk.jacobian: (),
    gk.parameter_jacobian: (),
    gk.input_gradients: (gk.objectives.output_sum,),
    gk.per_sample_gradients: (gk.objectives.output_sum,),
}


class TestVerdicts:
    @pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.__name__)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
    def test_all_methods_agree(self, question, dtype):
        model, x = network(dtype), torch.randn(5, 12).to(dtype)
        report = gk.assert_agreement(question, model, x, *QUESTIONS[question])
        assert bool(report) is True
        verdicts = {m.name: m.verdict for m in report.methods}
        assert set(verdicts) == set(gk.METHODS)
        assert set(verdicts.values()) <= {"equal", "rounding", "branch", "skipped"}
        for m in report.methods:
            assert (m.verdict == "skipped") == (m.seconds is None)
            assert m.verdict != "skipped" or m.reason

    def test_a_factor_is_found_and_named(self):
        model, x = network(), torch.randn(6, 12)
        wrong = changed("averaged", lambda v, _: v / 6)
        report = gk.compare_methods(gk.jacobian, model, x, methods=["loop", wrong])
        assert not report
        assert report["loop"].verdict == "rounding"
        assert report["averaged"].verdict == "different"
        assert (
            report["averaged"].hints[0]
            == "every entry is 1/N = 1/6 times the right one"
        )

    def test_the_place_is_that_of_the_wrong_entry(self):
        def off(v: Tensor, block: Any) -> Tensor:
            if block.rows.start == 2:
                v[4, 0, 7] += 0.25
            return v

        model, x = network(), torch.randn(6, 12)
        methods = [changed("off", off)]
        report = gk.compare_methods("jacobian", model, x, methods=methods)
        place: Any = report["off"].worst
        assert (place.sample, place.output, place.index) == (4, (2,), (7,))
        assert place.found - place.right == pytest.approx(0.25, abs=1e-6)
        assert place.allowed < 1e-5

    def test_the_place_in_a_parameter(self):
        def off(v: Tensor, block: Any) -> Tensor:
            if v.shape[-1] == 9 * 12:
                v[3 - block.samples.start, 0, 2 * 12 + 5] += 1
            return v

        model, x = network(), torch.randn(6, 12)
        report = gk.compare_methods(
            gk.per_sample_gradients, model, x, gk.objectives.output_sum,
            methods=[changed("off", off, "parameters")],
        )  # fmt: skip
        place: Any = report["off"].worst
        assert (place.sample, place.name, place.index) == (3, "0.weight", (2, 5))
        assert "only '0.weight' of 4 differ" in report["off"].hints
        assert "only 3 of 6 samples differ" in report["off"].hints

    def test_an_error_names_it_all(self):
        model, x = network(), torch.randn(6, 12)
        with pytest.raises(AgreementError) as caught:
            gk.assert_agreement(
                gk.jacobian, model, x, methods=[changed("minus", lambda v, _: -v)]
            )
        text = str(caught.value)
        assert text.startswith("assert_agreement: the methods of jacobian must agree")
        assert "'minus' is different: sample " in text
        assert "against" in text
        assert "Every entry is -1 times the right one" in text
        assert isinstance(caught.value.report, gk.AgreementReport)

    def test_a_changed_sign_at_a_kink_is_a_branch(self):
        model, x = network(), torch.randn(6, 12)
        first: Any = model[0]  # type: ignore[index]
        with torch.no_grad():
            first.bias.copy_(-(first.weight @ x[0]))
        report = gk.compare_methods(gk.jacobian, model, x)
        assert bool(report)
        found = {m.verdict for m in report.methods if m.verdict != "skipped"}
        assert found == {"branch"}
        assert "relu of '1'" in report.branches
        # Another sample's fault is none of its business.
        wrong = changed("wrong", lambda v, _: v * torch.arange(1, 7).view(6, 1, 1))
        report = gk.compare_methods(gk.jacobian, model, x, methods=[wrong])
        assert report["wrong"].verdict == "different"

    def test_a_number_that_an_error_makes_infinite_hides_no_fault(self):
        def function(x: Tensor) -> Tensor:
            one = x.sin() ** 2 + x.cos() ** 2
            return (1 - one + 1e-9).sqrt() + x**2

        doubled = changed("doubled", lambda v, _: 2 * v)
        x = torch.rand(4, 3) + 0.5
        report = gk.compare_methods(gk.jacobian, function, x, methods=[doubled])
        assert report["doubled"].verdict == "different"

    def test_a_factor_is_found_where_every_run_decides_otherwise(self):
        layers = [m for _ in range(3) for m in (nn.Linear(120, 120), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(120, 2)).bfloat16()
        x = torch.randn(4, 120).bfloat16()
        wrong = changed("wrong", lambda v, _: 1.5 * v)
        report = gk.compare_methods(gk.jacobian, model, x, methods=["onehot", wrong])
        assert report["onehot"].verdict in ("branch", "rounding")
        assert report["wrong"].verdict == "different"

    def test_autocast_inside_a_model_is_seen(self, device):
        first, last = nn.Linear(12, 16), nn.Linear(16, 3)

        def forward(m: Any, x: Tensor) -> Tensor:
            with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
                return m.last(m.first(x).tanh()).float()

        model = Holding(forward, first=first, last=last)
        report = gk.assert_agreement(gk.jacobian, model, torch.randn(4, 12))
        assert report.dtype == "bfloat16"

    def test_nothing_compared_is_no_agreement(self):
        def breaks(task: Any) -> Iterator[Any]:
            raise RuntimeError("a fault of mine")
            yield

        broken = gk.Method("broken", "reverse", "for a test", inputs=breaks)
        with pytest.raises(AgreementError, match="'broken' cannot be compared"):
            gk.assert_agreement(
                gk.jacobian, network(), torch.randn(3, 12), methods=[broken]
            )


class TestConventions:
    def test_a_no_grad_block_in_forward_mode(self):
        def model(x: Tensor) -> Tensor:
            with torch.no_grad():
                y = 3 * x
            return x * x + y

        x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
        report = gk.compare_methods(gk.jacobian, model, x)
        assert report["jacfwd"].verdict == "convention"
        assert "no_grad" in str(report["jacfwd"].reason)
        assert {report[n].verdict for n in ("onehot", "vmap", "loop")} == {"equal"}
        with pytest.raises(
            AgreementError, match=r"convention.*no_grad block or detach"
        ):
            gk.assert_agreement(gk.jacobian, model, x)

    def test_detach_is_agreed_on(self):
        def model(x: Tensor) -> Tensor:
            return x * x + 3 * x.detach()

        report = gk.assert_agreement(gk.jacobian, model, doubles(3, 2))
        assert report["jacfwd"].verdict in ("equal", "rounding")
        assert any("detach" in text for text in report.conventions)

    def test_padding_idx_is_agreed_on(self):
        table = nn.Embedding(4, 2, padding_idx=3)
        words = torch.tensor([[1], [3]])
        assert gk.assert_agreement(gk.parameter_jacobian, table, words)

    @pytest.mark.parametrize("function", [torch.relu, torch.abs])
    def test_a_kink_itself_is_agreed_on(self, function):
        x = torch.tensor([[0.0, 1.0, -1.0]], dtype=torch.float64)
        assert gk.assert_agreement(gk.jacobian, function, x)

    def test_another_choice_at_a_tie_is_a_convention(self):
        x = torch.tensor([[2.0, 2.0]], dtype=torch.float64)
        other = changed("first", lambda v, _: torch.tensor([[[1.0, 0.0]]]).to(v))
        report = gk.compare_methods(
            gk.jacobian, lambda x: torch.maximum(x[:, 0], x[:, 1])[:, None], x,
            methods=["loop", other],
        )  # fmt: skip
        assert report["loop"].verdict == "equal"
        assert report["first"].verdict == "convention"
        assert "maximum" in str(report["first"].reason)


class TestReports:
    def report(self) -> gk.AgreementReport:
        return gk.compare_methods(gk.jacobian, network(), torch.randn(3, 12))

    def test_are_text_json_markdown_and_html(self):
        report = self.report()
        text = str(report)
        for method in gk.METHODS:
            assert method in text
        plain = json.loads(json.dumps(report.to_dict()))
        assert plain["agrees"] is True
        assert [m["name"] for m in plain["methods"]] == list(gk.METHODS)
        table = report.to_markdown().splitlines()
        assert {line.count("|") for line in table[: 2 + len(gk.METHODS)]} == {8}
        assert report._repr_html_().count("<tr>") == 1 + len(gk.METHODS)

    def test_name_the_dtype_of_casts_inside(self):
        def model(x: Tensor) -> Tensor:
            return x.bfloat16().sin().double() * 2

        report = gk.compare_methods(gk.jacobian, model, doubles(3, 2))
        assert report.dtype == "bfloat16"
        assert bool(report)


class TestCalls:
    def test_leave_no_trace(self):
        model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        model.eval()
        x = torch.randn(4, 5)
        model(x).sum().backward()
        before = Footprint(model, tensors={"x": x})
        dtype = torch.get_default_dtype()
        gk.compare_methods(gk.per_sample_gradients, model, x, gk.objectives.output_sum)
        with pytest.raises(AgreementError):
            gk.assert_agreement(
                gk.jacobian, model, x, methods=[changed("no", lambda v, _: v + 1)]
            )
        before.assert_unchanged()
        assert torch.get_default_dtype() == dtype

    def test_with_a_seed_draw_alike(self):
        model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3))
        assert gk.assert_agreement(gk.jacobian, model, torch.randn(4, 5), seed=3)

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: (x * torch.rand_like(x)).tanh(),
            lambda x: x * torch.randn(x.shape),
            lambda x: x * torch.empty_like(x).normal_(),
            lambda x: x + torch.randn(4, dtype=torch.float32) * x.sin(),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_draw_the_numbers_that_the_model_draws(self, function, dtype):
        x = torch.randn(3, 4).to(dtype)
        assert gk.assert_agreement(gk.jacobian, function, x, seed=3)

    @pytest.mark.parametrize(
        ("how", "text"),
        [
            ({"referee": "mpmath"}, "referee must be 'float64'; got 'mpmath'"),
            ({"method": "loop"}, "method has no meaning here"),
            ({"methods": []}, "methods must name at least one"),
            ({"methods": None}, "methods must be names"),
            ({"methods": ["lop"]}, "loop"),
            ({"max_memory": 100}, "max_memory must hold six copies of the rows"),
        ],
    )
    def test_are_refused(self, how, text):
        with pytest.raises(InputError, match=text):
            gk.compare_methods(gk.jacobian, network(), torch.randn(3, 12), **how)

    def test_of_coupled_samples_are_refused(self):
        with pytest.raises(SampleDependenceError, match="independent"):
            gk.compare_methods(gk.jacobian, lambda x: x - x.mean(0), torch.randn(3, 2))

    def test_of_no_function_of_gradkit_s_are_refused(self):
        with pytest.raises(InputError, match="function must be one of"):
            gk.compare_methods(torch.autograd.grad, network(), torch.randn(3, 12))

    def test_close_over_float32_weights(self):
        """The objective, too, is evaluated in float64."""
        weights = torch.rand(4)
        y = torch.tensor([0, 3, 1])

        def loss(outputs: Tensor) -> Tensor:
            return F.cross_entropy(outputs, y, weight=weights, reduction="none")

        model, x = network(), torch.randn(3, 12)
        report = gk.assert_agreement(gk.per_sample_gradients, model, x, loss)
        assert report.dtype == "float32"
        assert report.lower == {}

    def test_of_one_sample_and_of_several_inputs(self):
        model = weighted(lambda m, x, z: {"a": x * m.w, "b": (z * m.w).sum(1)})
        inputs = doubles(1, 3), doubles(1, 3)
        report = gk.assert_agreement(gk.jacobian, model, inputs, of="a")
        assert report.samples == 1

    def test_without_a_sample_axis(self):
        def function(x: Tensor) -> Tensor:
            return torch.outer(x, x).flatten()

        report = gk.assert_agreement(gk.jacobian, function, doubles(3), batched=False)
        assert report["onehot"].verdict in ("equal", "rounding")

    def test_keep_a_model_that_writes_to_a_low_buffer_unresolved(self):
        def forward(m: Any, x: Tensor) -> Tensor:
            held = torch.empty(0).new_zeros(x.shape, dtype=torch.float32)
            m.held = held
            return m.low.clone().copy_(x.detach()).double() * 0 + x * m.w

        model = Holding(forward, w=nn.Parameter(doubles(3)))
        model.register_buffer("low", torch.zeros(4, 3, dtype=torch.float32))
        report = gk.compare_methods(gk.jacobian, model, doubles(4, 3))
        assert set(report.lower) <= {"copy_"}


class TestReportedCases:
    """Differences that people took for faults, or that hid one."""

    def test_other_last_bits_in_another_batch(self):
        report = gk.batch_consistency(nn.Linear(512, 512), torch.rand(64, 512))
        assert report.verdict == "rounding"
        convolution = nn.Conv2d(4, 3, 3, padding=1)
        report = gk.batch_consistency(convolution, torch.randn(8, 4, 8, 6))
        assert report.verdict in ("equal", "rounding")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_second_digit_in_bfloat16(self, dtype):
        layers = nn.Sequential(nn.Linear(64, 40), nn.GELU(), nn.Linear(40, 3))
        model, x = layers.to(dtype), torch.randn(8, 64).to(dtype)
        loss = gk.objectives.sample_loss(F.cross_entropy, torch.randint(0, 3, (8,)))
        report = gk.assert_agreement(gk.per_sample_gradients, model, x, loss)
        eps = torch.finfo(dtype).eps
        for method in report.methods:
            if method.verdict != "skipped":
                assert (method.relative or 0.0) < 8 * eps

    @pytest.mark.parametrize(
        "function",
        [
            torch.relu,
            lambda x: x.clamp(0, 1),
            lambda x: x.amax(1, keepdim=True),
            lambda x: x.max(1, keepdim=True).values,
            lambda x: F.max_pool1d(x[:, None], 2)[:, 0],
            lambda x: torch.maximum(x, x.flip(1)),
        ],
    )
    def test_ties_are_agreed_on_or_a_convention(self, function):
        x = torch.tensor([[0.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
        report = gk.compare_methods(gk.jacobian, function, x)
        assert {m.verdict for m in report.methods} <= {
            "equal", "rounding", "convention", "skipped",
        }  # fmt: skip
