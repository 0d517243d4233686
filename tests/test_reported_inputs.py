"""Publicly reported faults with what goes in and what comes out of a call."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gradkit as gk
from gradkit.errors import InputError
from reported import answers, assert_all_equal, methods_of, rows_of


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


class TestResultsAreDetached:
    """pytorch/functorch#639, pytorch/functorch#1146, meta-pytorch/captum#1055."""

    def test_no_result_keeps_a_graph(self):
        layer, x = nn.Linear(2, 3), torch.randn(4, 2)
        total = gk.objectives.output_sum
        jacobians = answers(gk.jacobian, layer, x)
        assert_all_equal(jacobians, layer.weight.detach().expand(4, 3, 2))
        gradients = answers(gk.input_gradients, layer, x, total)
        for found in (*jacobians.values(), *gradients.values()):
            assert not found.requires_grad
            assert found.grad_fn is None
        rows = answers(gk.parameter_jacobian, layer, x)
        sums = answers(gk.per_sample_gradients, layer, x, total)
        for found in (*rows.values(), *sums.values()):
            tensors = [found.outputs, found.norms(), *found.values()]
            assert not any(tensor.requires_grad for tensor in tensors)

    def test_a_kept_result_does_not_keep_the_forward_alive(self):
        class Watched(nn.Module):
            def forward(self, x):
                hidden = torch.tanh(x)
                alive.append(weakref.ref(hidden))
                return hidden**2

        for method in methods_of(gk.jacobian):
            alive: list[weakref.ref] = []
            kept = gk.jacobian(Watched(), torch.randn(4, 2), method=method)
            gc.collect()
            assert alive
            assert all(reference() is None for reference in alive), method
            assert kept.shape == (4, 2, 2)

    def test_a_graph_is_kept_when_asked_for(self):
        x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
        cubes = gk.jacobian(lambda x: x**3, x, create_graph=True)
        assert cubes.requires_grad
        (second,) = torch.autograd.grad(cubes.sum(), x)
        torch.testing.assert_close(second, 6 * x.detach())


class TestIntegerInputs:
    """shap/shap#1671, meta-pytorch/captum#1080, meta-pytorch/captum#771."""

    def network(self):
        model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
        return model.double(), torch.tensor([[1, 2], [3, 4]])

    def test_an_input_derivative_is_refused_and_points_to_the_embedding(self):
        model, tokens = self.network()
        for question in (gk.jacobian, gk.input_gradients):
            for method in methods_of(question):
                with pytest.raises(InputError, match=r"(?s)int64.*embedding.*wrt="):
                    question(model, tokens, method=method)

    def test_the_embedding_s_output_is_the_way_out(self):
        model, tokens = self.network()
        answered = answers(gk.jacobian, model, tokens, wrt="0")
        expected = model.get_parameter("2.weight").reshape(2, 2, 3).expand(2, 2, 2, 3)
        assert_all_equal(answered, expected)

    def test_only_the_rows_of_used_tokens_are_not_zero(self):
        model, tokens = self.network()
        total = gk.objectives.output_sum
        rows = answers(gk.per_sample_gradients, model, tokens, total)
        columns = model.get_parameter("2.weight").sum(0).reshape(2, 3)
        expected = torch.zeros(2, 5, 3, dtype=torch.float64)
        expected[0, 1:3] = columns
        expected[1, 3:5] = columns
        assert_all_equal(rows_of(rows, "0.weight"), expected)

    def test_beside_floating_inputs_they_have_none(self):
        embed = nn.Embedding(5, 3)

        def model(tokens, scale):
            return embed(tokens).sum(1) * scale

        tokens, scale = torch.tensor([[1, 2], [3, 4]]), torch.randn(2, 3)
        answered = answers(gk.jacobian, model, (tokens, scale))
        assert all(found[0] is None for found in answered.values())
        found = {method: pair[1] for method, pair in answered.items()}
        assert_all_equal(found, torch.diag_embed(embed(tokens).sum(1).detach()))
        answered = answers(gk.jacobian, model, {"tokens": tokens, "scale": scale})
        assert all(found["tokens"] is None for found in answered.values())


class TestFrozenParameters:
    """meta-pytorch/captum#226, aleximmer/Laplace#144, linkedin/Liger-Kernel#1441."""

    def network(self):
        model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)).double()
        model[0].requires_grad_(requires_grad=False)
        return model, torch.randn(5, 2, dtype=torch.float64)

    def test_trainable_parameters_are_the_default(self):
        model, x = self.network()
        rows = answers(gk.per_sample_gradients, model, x, gk.objectives.output_sum)
        assert all(list(found) == ["1.weight", "1.bias"] for found in rows.values())
        hidden = model[0](x)
        assert_all_equal(rows_of(rows, "1.weight"), hidden[:, None].expand(5, 3, 4))

    def test_a_frozen_parameter_is_served_when_named(self):
        model, x = self.network()
        flags = [parameter.requires_grad for parameter in model.parameters()]
        rows = answers(gk.parameter_jacobian, model, x, parameters="0.weight")
        assert all(list(found) == ["0.weight"] for found in rows.values())
        outer = model.get_parameter("1.weight")
        expected = torch.einsum("kj,nd->nkjd", outer, x)
        assert_all_equal(rows_of(rows, "0.weight"), expected)
        assert [p.requires_grad for p in model.parameters()] == flags

    def test_inputs_of_a_frozen_model(self):
        model, x = self.network()
        model.requires_grad_(requires_grad=False)
        inner, outer = (model.get_parameter(f"{i}.weight") for i in (0, 1))
        expected = (outer @ inner).expand(5, 3, 2)
        assert_all_equal(answers(gk.jacobian, model, x), expected)
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert not x.requires_grad

    def test_low_rank_factors_beside_a_frozen_weight(self):
        class LowRank(nn.Module):
            def __init__(self):
                super().__init__()
                self.base = nn.Linear(4, 3).requires_grad_(requires_grad=False)
                self.lora_a = nn.Parameter(torch.randn(2, 4))
                self.lora_b = nn.Parameter(torch.randn(3, 2))

            def forward(self, x):
                return self.base(x) + x @ self.lora_a.T @ self.lora_b.T

        model, x = LowRank().double(), torch.randn(5, 4, dtype=torch.float64)
        rows = answers(gk.parameter_jacobian, model, x, parameters="*lora_*")
        assert all(list(found) == ["lora_a", "lora_b"] for found in rows.values())
        expected = torch.einsum("kr,nd->nkrd", model.lora_b, x)
        assert_all_equal(rows_of(rows, "lora_a"), expected)


class TestChoosingTheOutput:
    """meta-pytorch/captum#389, #741, #455, #352, #377, #1358."""

    IDENTITY = nn.Identity()

    @pytest.mark.parametrize("labels", [[0, 1, 3], torch.tensor([0, 1, 3])], ids=str)
    def test_one_class_per_sample_is_not_all_classes_for_all(self, labels):
        z = torch.randn(3, 4)
        onehot = F.one_hot(torch.tensor([0, 1, 3]), 4)
        labels = torch.as_tensor(labels).to(z.device)
        for objective in (labels, gk.objectives.class_score(labels)):
            answered = answers(gk.input_gradients, self.IDENTITY, z, objective)
            assert_all_equal(answered, onehot)

    def test_one_class_for_all_samples(self):
        z = torch.randn(3, 4)
        onehot = F.one_hot(torch.tensor([2, 2, 2]), 4)
        for objective in (2, gk.objectives.class_score(2)):
            answered = answers(gk.input_gradients, self.IDENTITY, z, objective)
            assert_all_equal(answered, onehot)

    def test_one_step_and_class_of_a_sequence(self):
        z = torch.randn(3, 5, 4)
        objective = gk.objectives.class_score((1, 2))
        expected = torch.zeros(3, 5, 4)
        expected[:, 1, 2] = 1
        answered = answers(gk.input_gradients, self.IDENTITY, z, objective)
        assert_all_equal(answered, expected)

    @pytest.mark.parametrize("keep", [False, True])
    def test_a_single_output_needs_no_choice(self, keep):
        x = torch.randn(3, 4)
        answered = answers(gk.input_gradients, lambda x: x.sum(1, keepdim=keep), x)
        assert_all_equal(answered, torch.ones(3, 4))

    @pytest.mark.parametrize(
        ("choice", "shape"),
        [
            (4, (3, 4)),
            ([0, 1, 4], (3, 4)),
            ([0, 1], (3, 4)),
            ([0.0, 1.0, 2.0], (3, 4)),
            ([0, -1, 2], (3, 4)),
            ((1, 4), (3, 5, 4)),
            (1, (3, 5, 4)),
        ],
        ids=str,
    )
    def test_a_wrong_choice_is_refused_with_the_output_s_shape(self, choice, shape):
        choice = torch.tensor(choice) if isinstance(choice, list) else choice
        pattern = ", ".join(str(size) for size in shape[1:])
        with pytest.raises(InputError, match=pattern):
            gk.input_gradients(
                self.IDENTITY, torch.randn(shape), gk.objectives.class_score(choice)
            )


class LargestTensor(TorchDispatchMode):
    """Records the bytes of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.nbytes = max(self.nbytes, storage.nbytes())
        return result


class TestMemory:
    """pytorch/functorch#1058, pytorch/functorch#680, aleximmer/Laplace#186."""

    OUTPUTS, INPUTS = 150, 70

    def problem(self):
        scale = torch.randn(self.OUTPUTS, self.INPUTS, dtype=torch.float64)
        x = torch.randn(self.INPUTS, dtype=torch.float64)
        expected = scale * (1 - torch.tanh(scale * x) ** 2)
        return lambda x: torch.tanh(scale * x).sum(1), x, expected

    def test_a_small_budget_changes_the_chunks_and_not_the_values(self):
        function, x, expected = self.problem()
        intermediate = expected.numel() * 8
        # All rows at once would hold 150 times the intermediate result.
        budget = 15 * intermediate
        with LargestTensor() as largest:
            found = gk.jacobian(
                function, x, batched=False, method="vmap", max_memory=budget
            )
        torch.testing.assert_close(found, expected)
        assert intermediate <= largest.nbytes <= budget

    def test_a_budget_below_one_row_is_refused_with_the_bytes_it_takes(self):
        function, x, expected = self.problem()
        with pytest.raises(InputError, match=r"max_memory.*bytes") as caught:
            gk.jacobian(function, x, batched=False, method="vmap", max_memory=1000)
        needed = caught.value.needed
        assert needed >= expected.numel() * 8
        found = gk.jacobian(
            function, x, batched=False, method="vmap", max_memory=needed
        )
        torch.testing.assert_close(found, expected)

    def test_every_method_writes_into_the_tensor_it_is_given(self):
        function, x, expected = self.problem()
        for method in methods_of(gk.jacobian):
            rows = torch.full_like(expected, torch.nan)
            found = gk.jacobian(
                function, x, batched=False, method=method, max_memory="1MB", out=rows
            )
            assert found is rows
            torch.testing.assert_close(rows, expected)
