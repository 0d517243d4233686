"""A ``ParameterJacobian`` as a mapping, as tensors, in parts, and at small sizes."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradkit as gk
from gradkit.errors import InputError
from parameter_rows import Problem, assert_same, every_output, one_objective, row_bytes


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


@pytest.fixture(params=[every_output, one_objective])
def problem(request) -> Problem:
    return request.param()


@pytest.fixture(params=["held", "streamed"])
def found(request, problem) -> gk.ParameterJacobian:
    """The answer, all rows at once or a few at a time."""
    streamed = request.param == "streamed"
    return problem.ask(max_memory=4 * row_bytes(problem) if streamed else None)


class TestMapping:
    def test_is_a_mapping_of_the_distinct_parameters(self, problem, found):
        rows = problem.rows()
        assert len(found) == len(rows)
        assert list(found) == list(found.keys()) == list(rows)
        assert_same(dict(found.items()), rows)
        for value, expected in zip(found.values(), rows.values(), strict=True):
            torch.testing.assert_close(value, expected)
        assert "no such parameter" not in found
        assert found.get("no such parameter") is None
        with pytest.raises(KeyError, match="no such parameter"):
            found["no such parameter"]

    def test_a_tied_parameter_answers_to_each_of_its_names(self):
        problem = every_output()
        found = problem.ask()
        assert list(found) == ["embedding.weight", "head.bias"]
        assert "head.weight" in found
        assert torch.equal(found["head.weight"], found["embedding.weight"])
        assert_same(found["head.weight"], problem.rows()["embedding.weight"])

    def test_every_access_builds_a_fresh_tensor(self, found):
        name = next(iter(found))
        before = found[name].clone()
        found[name].zero_()
        assert torch.equal(found[name], before)

    def test_knows_the_forward_that_was_differentiated(self, problem, found):
        outputs = problem.model(problem.inputs)
        torch.testing.assert_close(found.outputs, outputs.detach())
        assert not found.outputs.requires_grad
        if problem.name == "one objective":
            values = problem.values(outputs).detach()
            torch.testing.assert_close(found.objective_values, values)
        else:
            assert found.objective_values is None

    def test_repr_names_the_parameters_and_forms_nothing(self, problem, found):
        class NoRows(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                raise AssertionError(f"repr computed {function}")

        with NoRows():
            text = repr(found)
        sizes = [parameter.numel() for parameter in problem.model.parameters()]
        assert f"N={len(problem.inputs)}" in text
        assert f"{len(sizes)} parameters" in text
        assert f"{sum(sizes):,} entries" in text


class TestForms:
    def test_flat_and_columns(self, problem, found):
        flat = problem.flat_rows()
        torch.testing.assert_close(found.flat(), flat)
        assert list(found.columns) == list(problem.rows())
        start = 0
        for name, parameter in problem.model.named_parameters():
            assert found.columns[name] == slice(start, start + parameter.numel())
            start += parameter.numel()

    def test_flat_into_a_given_tensor(self, problem, found):
        flat = problem.flat_rows()
        out = torch.full_like(flat, math.nan)
        assert found.flat(out=out) is out
        torch.testing.assert_close(out, flat.detach())
        with pytest.raises(InputError, match=r"out"):
            found.flat(out=out[:-1])
        with pytest.raises(InputError, match=r"out"):
            found.flat(out=out.float())

    def test_to_dict_with_and_without_given_tensors(self, problem, found):
        rows = problem.rows()
        assert type(found.to_dict()) is dict
        assert_same(found.to_dict(), rows)
        out = {name: torch.full_like(part, math.nan) for name, part in rows.items()}
        returned = found.to_dict(out=out)
        assert all(returned[name] is out[name] for name in rows)
        assert_same(out, {name: part.detach() for name, part in rows.items()})
        name = next(iter(out))
        with pytest.raises(InputError, match=name):
            found.to_dict(out={**out, name: out[name][:-1]})

    def test_nbytes_says_what_is_held(self, problem):
        whole = 8 * problem.flat_rows().numel()
        assert problem.ask(method="vmap").nbytes == whole
        # Factors are smaller than what they are factors of.
        assert 0 < problem.ask().nbytes < whole
        streamed = problem.ask(method="vmap", max_memory=4 * row_bytes(problem))
        # What is rerun later is copied: model and inputs, not rows.
        assert 0 < streamed.nbytes < whole

    def test_select(self, problem, found):
        rows = problem.rows()
        last = list(rows)[-1]
        chosen = found.select(last)
        assert list(chosen) == [last]
        torch.testing.assert_close(chosen[last], rows[last])
        lead = problem.flat_rows().dim() - 1
        expected = rows[last].flatten(lead).norm(dim=-1)
        torch.testing.assert_close(chosen.norms(), expected)
        assert list(found.select(["*weight"])) == [n for n in rows if "weight" in n]
        with pytest.raises(InputError, match="no such parameter"):
            found.select("no such parameter")

    @pytest.mark.parametrize("index", [[2, 0], slice(1, None), [1]], ids=str)
    def test_samples(self, problem, found, index):
        chosen = found.samples(index)
        expected = {name: part[index] for name, part in problem.rows().items()}
        assert_same(chosen.to_dict(), expected)
        torch.testing.assert_close(chosen.outputs, found.outputs[index])
        torch.testing.assert_close(chosen.norms(), found.norms()[index])
        weights = torch.randn_like(chosen.norms())
        whole = torch.zeros_like(found.norms())
        whole[index] = weights
        assert_same(chosen.rmatvec(weights), found.rmatvec(whole))

    @pytest.mark.parametrize(
        "ask",
        [
            lambda J: J.gram("kernel"),
            lambda J: J.select(3),
            lambda J: J.samples([len(J.norms())]),
            lambda J: J.samples([0.5]),
            lambda J: J.clipped_sum(-1.0),
            lambda J: J.clipped_sum({}),
            lambda J: J.matvec("vector"),
            lambda J: J.rmatvec("weights"),
            lambda J: J.project(3, seed=None),
        ],
        ids=["gram", "select", "samples past the end", "samples between",
             "clipped_sum below zero", "clipped_sum of nothing", "matvec", "rmatvec",
             "project"],
    )  # fmt: skip
    def test_what_makes_no_sense_is_refused(self, ask):
        with pytest.raises(InputError, match=r"^ParameterJacobian\.\w+: "):
            ask(one_objective().ask())

    def test_is_equal_to_itself_alone(self, problem):
        found, other = problem.ask(), problem.ask()
        assert found == found
        assert found != other


class TestSizes:
    def test_no_samples_give_no_rows(self, problem):
        found = problem.ask(problem.inputs[:0])
        lead = (0,) if problem.name == "one objective" else (0, 2, 7)
        shapes = {name: p.shape for name, p in problem.model.named_parameters()}
        rows = {name: torch.empty(*lead, *s).double() for name, s in shapes.items()}
        assert_same(found.to_dict(), rows)
        assert found.norms().shape == lead
        assert found.gram().shape == (*lead, *lead)
        assert found.project(3, seed=1).shape == (*lead, 3)
        zeros = {name: torch.zeros(s).double() for name, s in shapes.items()}
        assert_same(found.sum(), zeros)
        assert_same(found.clipped_sum(1.0), zeros)

    def test_no_samples_run_no_model(self):
        problem = one_objective()

        def fail(*arguments):
            raise AssertionError("the model ran")

        problem.model.register_forward_pre_hook(fail)
        found = problem.ask(problem.inputs[:0])
        assert found["0.weight"].shape == (0, 4, 3)

    def test_one_sample(self, problem):
        inputs = problem.inputs[1:2]
        found = problem.ask(inputs)
        assert_same(found.to_dict(), problem.rows(inputs))
        expected = problem.flat_rows(inputs).norm(dim=-1)
        torch.testing.assert_close(found.norms(), expected)


class TestTheMomentOfTheCall:
    """Whatever is done afterwards, the answer is that of the call."""

    def everything(self, found):
        vector = torch.linspace(-1, 1, sum(v.numel() for v in found.sum().values()))
        weights = torch.linspace(1, 2, found.norms().numel()).double()
        return [
            found.norms(),
            found.flat(),
            found.gram(),
            found.matvec(vector.double()),
            *found.rmatvec(weights.reshape(found.norms().shape)).values(),
            *found.second_moment().values(),
            *found.clipped_sum(0.5).values(),
            found.project(3, seed=2),
        ]

    def assert_bit_equal(self, found, expected):
        for one, two in zip(self.everything(found), expected, strict=True):
            assert torch.equal(one, two)

    def test_changed_parameters_and_inputs_change_nothing(self, problem, found):
        expected = self.everything(found)
        for parameter in problem.model.parameters():
            parameter.data.fill_(7.0)  # moves no version counter
        problem.inputs.data.zero_()
        problem.model.requires_grad_(requires_grad=False)
        problem.model.eval()
        self.assert_bit_equal(found, expected)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_is_asked_in_any_grad_mode(self, found, mode):
        expected = self.everything(found)
        with mode():
            self.assert_bit_equal(found, expected)
