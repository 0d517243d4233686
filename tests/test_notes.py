"""What people do by hand with ``backward`` in notebooks, as single calls."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradkit as gk

SQUARE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@pytest.fixture(autouse=True)
def _on_device(device):
    with torch.device(device):
        yield


@pytest.fixture
def network(device):
    """The two-layer network of many tutorials: 784-500-10."""
    return gk.mnist.network(seed=0).to(device)


@pytest.fixture
def images():
    """A stand-in for digits: a hundred images of 784 brightnesses."""
    return torch.rand(100, 784)


@pytest.fixture
def labels():
    return torch.randint(10, (100,))


def test_a_sample_alone_and_in_a_batch_differ_by_rounding_at_most():
    layer, x = nn.Linear(10, 10), torch.randn(2, 10)
    apart = (layer(x[0]) - layer(x)[0]).abs()
    # Two sums of n products differ by at most about 2 n u sum|w||x|.
    magnitude = layer.weight.abs() @ x[0].abs() + layer.bias.abs()
    roundoff = torch.finfo(torch.float32).eps / 2
    assert (apart <= 2 * 11 * roundoff * magnitude).all()
    # Measured, named, and told from coupling; or made equal.
    report = gk.batch_consistency(layer, torch.randn(64, 10))
    assert report.verdict == "rounding"
    with gk.batch_invariant():
        assert torch.equal(layer(x)[:1], layer(x[:1]))
        whole, alone = gk.jacobian(layer, x), gk.jacobian(layer, x[:1])
    assert torch.equal(whole[:1], alone)
    layer, x = layer.double(), x.double()
    assert ((layer(x[0]) - layer(x)[0]).abs() <= 2e-8 * roundoff * magnitude).all()


def test_the_scatter_of_per_sample_gradients_is_there_without_the_rows():
    model = nn.Linear(2, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    rows = gk.per_sample_gradients(model, x, lambda outputs: outputs[:, 0] ** 2)
    # d (w.x)^2 / dw = 2 (w.x) x: [2, 0], [0, 8] and [4, 4], with mean [2, 4].
    mean, square = rows.mean()["weight"], rows.second_moment()["weight"]
    assert mean.flatten().tolist() == [2.0, 4.0]
    torch.testing.assert_close(square, torch.tensor([[20.0, 80.0]]).double() / 3)
    variance = square - mean**2
    torch.testing.assert_close(variance, torch.tensor([[8.0, 32.0]]).double() / 3)
    noise_scale = variance.sum() / mean.pow(2).sum()
    torch.testing.assert_close(noise_scale.item(), 2 / 3)


def test_the_batch_size_at_which_noise_and_gradient_are_even(network, images, labels):
    loss = gk.objectives.sample_loss(F.cross_entropy, labels)
    rows = gk.per_sample_gradients(network, images, loss).flat().double()
    noise = rows.var(0).sum()
    signal = rows.mean(0).square().sum() - noise / len(rows)
    batches = [(images[i : i + 10], labels[i : i + 10]) for i in range(0, 100, 10)]
    found = gk.quantities.noise_scale(network, batches, progress=False)
    assert found.noise == pytest.approx(noise.item(), rel=1e-5)
    assert found.signal == pytest.approx(signal.item(), rel=1e-4)
    assert found.interval[0] < found.scale <= found.interval[1]


def test_everything_follows_the_device_of_model_and_inputs(device):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    total = gk.objectives.output_sum
    # A default device elsewhere must not decide where anything is made.
    with torch.device("meta"):
        found = [
            gk.jacobian(model, x),
            gk.input_gradients(model, x, total),
            *gk.parameter_jacobian(model, x).values(),
            gk.per_sample_gradients(model, x, total).norms(),
        ]
    assert all(tensor.device.type == device.type for tensor in found)
    torch.testing.assert_close(found[0], model.weight.detach().expand(4, 2, 3))


def test_nonzero_entries_say_which_inputs_an_output_depends_on():
    model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, bias=False), nn.Flatten())
    model.get_parameter("0.weight").data.fill_(1.0)
    found = gk.jacobian(model, torch.randn(2, 1, 5))
    touches = [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4]]
    for n in range(2):
        pairs = torch.nonzero(found[n, :, 0])
        expected = [[k, d] for k, inputs in enumerate(touches) for d in inputs]
        assert pairs.tolist() == expected


def test_nothing_accumulates_and_nothing_is_to_be_cleared():
    x = SQUARE.clone().requires_grad_()
    for loss in ((x * x).mean(), (x * x).max()):
        loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.5, 1.0], [1.5, 10.0]]
    x.grad = None
    for _ in range(2):
        mean = gk.input_gradients(lambda x: (x * x).mean(), x, batched=False)
        assert mean.tolist() == [[0.5, 1.0], [1.5, 2.0]]
        largest = gk.input_gradients(lambda x: (x * x).max(), x, batched=False)
        assert largest.tolist() == [[0.0, 0.0], [0.0, 8.0]]
    assert x.grad is None


def test_no_graph_is_left_and_memory_does_not_grow():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(5, 3)

    def tensors_after(calls):
        for _ in range(calls):
            assert not gk.jacobian(model, x).requires_grad
            rows = gk.per_sample_gradients(model, x, gk.objectives.output_sum)
            assert not rows["0.weight"].requires_grad
        del rows
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    # Proofs of independence may be remembered during the first calls.
    first = tensors_after(9)
    assert tensors_after(9) == first


def test_the_network_is_784_500_10(network, images):
    names = [name for name, _ in network.named_children()]
    assert names == ["fc1", "relu", "fc2"]
    found = gk.jacobian(network, images[:3])
    active = (network.fc1(images[:3]) > 0).float()
    expected = torch.einsum(
        "kh,nh,hd->nkd", network.fc2.weight, active, network.fc1.weight
    )
    torch.testing.assert_close(found, expected.detach())


def test_a_layer_or_one_neuron_can_be_what_is_differentiated(network, images):
    inner = gk.jacobian(network, images[:3], of="fc1")
    torch.testing.assert_close(inner, network.fc1.weight.detach().expand(3, -1, -1))
    neuron = gk.input_gradients(network, images, gk.objectives.class_score(2))
    x = images.clone().requires_grad_()
    network(x)[:, 2].backward(torch.ones(100))
    torch.testing.assert_close(neuron, x.grad)
    outer = gk.jacobian(network, images[:3], wrt="relu")
    torch.testing.assert_close(outer, network.fc2.weight.detach().expand(3, -1, -1))


def test_gradient_of_the_loss_with_respect_to_the_images(network, images, labels):
    loss = gk.objectives.sample_loss(F.cross_entropy, labels)
    found = gk.input_gradients(network, images, loss)
    assert found.shape == (100, 784)
    x = images.clone().requires_grad_()
    F.cross_entropy(network(x), labels).backward()
    # ``backward`` of the mean loss gives every image's gradient divided by 100.
    torch.testing.assert_close(found, 100 * x.grad)
    assert found.abs().max() > 1e-3


def test_a_vector_of_weights_gives_the_weighted_sum_of_rows():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    images = torch.randn(6, 4, dtype=torch.float64)
    rows = gk.jacobian(model, images)
    for weights in (torch.ones(3), torch.randn(3), torch.randn(6, 3)):
        weights = weights.double()
        x = images.clone().requires_grad_()
        model(x).backward(weights.expand(6, 3))
        objective = gk.objectives.weighted_sum(weights)
        found = gk.input_gradients(model, images, objective)
        torch.testing.assert_close(found, x.grad)
        torch.testing.assert_close(
            found, torch.einsum("nk,nkd->nd", weights.expand(6, 3), rows)
        )
    ones = gk.input_gradients(model, images, gk.objectives.output_sum)
    torch.testing.assert_close(ones, rows.sum(1))


def test_the_full_jacobian_by_one_hot_vectors_has_outputs_as_rows():
    x = torch.tensor([1.0, -3.0])
    double = gk.jacobian(lambda x: 2 * x, x, batched=False, method="onehot")
    assert double.tolist() == [[2.0, 0.0], [0.0, 2.0]]
    # Three outputs and two inputs: a transposed result would have another shape.
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = gk.jacobian(lambda x: weight @ x, x, batched=False, method="onehot")
    assert torch.equal(found, weight)


def test_the_jacobian_is_the_neurons_gradients_row_by_row(network, images):
    rows = gk.jacobian(network, images[:4])
    for k in range(10):
        neuron = gk.input_gradients(network, images[:4], gk.objectives.class_score(k))
        torch.testing.assert_close(rows[:, k], neuron)


def test_the_gradient_of_one_image_is_its_row_of_the_batch(network, images, labels):
    loss = gk.objectives.sample_loss(F.cross_entropy, labels)
    batch = gk.input_gradients(network, images, loss)
    loss = gk.objectives.sample_loss(F.cross_entropy, labels[:1])
    single = gk.input_gradients(network, images[0].view(1, -1), loss)
    assert single.shape == (1, 784)
    torch.testing.assert_close(single, batch[:1])
    with gk.batch_invariant():
        loss = gk.objectives.sample_loss(F.cross_entropy, labels)
        batch = gk.input_gradients(network, images, loss)
        loss = gk.objectives.sample_loss(F.cross_entropy, labels[:1])
        single = gk.input_gradients(network, images[0].view(1, -1), loss)
    assert torch.equal(single, batch[:1])


def test_no_call_reads_or_writes_grad_or_requires_grad():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    whole = torch.randn(5, 3, requires_grad=True)
    part = whole[1:4]  # not a leaf: it has no ``.grad`` of its own
    model(whole).sum().backward()
    assert whole.grad is not None
    model[0].requires_grad_(requires_grad=False)
    watched = [whole, *model.parameters()]
    before = [(t.requires_grad, t.grad, t.grad.clone()) for t in watched]
    total = gk.objectives.output_sum
    first = gk.input_gradients(model, part, total)
    gk.jacobian(model, part)
    gk.per_sample_gradients(model, part, total).norms()
    gk.parameter_jacobian(model, part).sum()
    for tensor, (flag, grad, value) in zip(watched, before, strict=True):
        assert tensor.requires_grad == flag
        assert tensor.grad is grad
        assert torch.equal(tensor.grad, value)
    torch.testing.assert_close(first, whole.grad[1:4])
    assert part.requires_grad
    assert torch.equal(gk.input_gradients(model, part, total), first)
