"""Losses per sample against torch's own, one sample at a time, and by hand."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from case import DEVICE
from gradkit.objectives import sample_loss, token_loss

F64 = torch.float64
partial = functools.partial


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=F64, generator=generator).to(DEVICE)


def classes(*shape, high, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(high, shape, generator=generator).to(DEVICE)


def doubles(values):
    return torch.tensor(values, dtype=F64, device=DEVICE)


def batches_of_one(criterion, outputs, targets):
    """What torch says of each sample alone: value and gradient."""
    values, gradients = [], []
    for n in range(len(outputs)):
        output = outputs[n : n + 1].detach().requires_grad_()
        value = criterion(output, targets[n : n + 1]).sum()
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, output)[0][0])
    return torch.stack(values), torch.stack(gradients)


def values_and_gradient(objective, outputs):
    outputs = outputs.detach().requires_grad_()
    values = objective(outputs)
    return values.detach(), torch.autograd.grad(values.sum(), outputs)[0]


def assert_law(criterion, outputs, targets, objective=None):
    objective = objective or sample_loss(criterion, targets)
    assert objective(outputs).shape == outputs.shape[:1]
    torch.testing.assert_close(
        values_and_gradient(objective, outputs),
        batches_of_one(criterion, outputs, targets),
        equal_nan=True,
    )


Z, Z3, Z4 = draw(5, 3), draw(5, 3, 4), draw(5, 3, 4, 2)
Y, Y3, Y4 = classes(5, high=3), classes(5, 4, high=3), classes(5, 4, 2, high=3)
SIGNS = 2 * classes(5, 3, high=2).to(F64) - 1
P3 = Z3.softmax(1).flip(0)
SOME_IGNORED = torch.where(classes(5, 4, high=3, seed=7) == 0, 1, Y3)

LAWS = {
    "cross_entropy": (F.cross_entropy, Z, Y),
    "cross_entropy, images": (F.cross_entropy, Z4, Y4),
    "cross_entropy, sum": (partial(F.cross_entropy, reduction="sum"), Z3, Y3),
    "cross_entropy, ignore": (partial(F.cross_entropy, ignore_index=1), Z3, Y3),
    "cross_entropy, ignore and smooth": (
        partial(F.cross_entropy, ignore_index=1, label_smoothing=0.2),
        Z3,
        SOME_IGNORED,
    ),
    "cross_entropy, probabilities": (F.cross_entropy, Z3, P3),
    "cross_entropy, weighted sum": (
        partial(F.cross_entropy, weight=draw(3).exp(), reduction="sum"),
        Z3,
        Y3,
    ),
    "nll_loss": (F.nll_loss, Z3.log_softmax(1), Y3),
    "mse_loss": (F.mse_loss, Z3, Z3.flip(0)),
    "mse_loss, sum": (partial(F.mse_loss, reduction="sum"), Z3, Z3.flip(0)),
    "l1_loss": (F.l1_loss, Z3, Z3.flip(0)),
    "huber_loss": (partial(F.huber_loss, delta=0.7), Z3, Z3.flip(0)),
    "smooth_l1_loss": (partial(F.smooth_l1_loss, beta=0.4), Z3, Z3.flip(0)),
    "binary_cross_entropy": (F.binary_cross_entropy, Z.sigmoid(), (SIGNS + 1) / 2),
    "binary_cross_entropy_with_logits": (
        partial(F.binary_cross_entropy_with_logits, pos_weight=draw(3).exp()),
        Z,
        (SIGNS + 1) / 2,
    ),
    "kl_div": (F.kl_div, Z3.log_softmax(1), P3),
    "kl_div, batchmean": (
        partial(F.kl_div, reduction="batchmean"),
        Z3.log_softmax(1),
        P3,
    ),
    "poisson_nll_loss": (F.poisson_nll_loss, Z, Z.exp().round()),
    "gaussian_nll_loss": (partial(F.gaussian_nll_loss, var=0.3), Z3, Z3.flip(0)),
    "soft_margin_loss": (F.soft_margin_loss, Z, SIGNS),
    "hinge_embedding_loss": (F.hinge_embedding_loss, Z, SIGNS),
    "multi_margin_loss": (F.multi_margin_loss, Z, Y),
    "multilabel_margin_loss": (
        F.multilabel_margin_loss,
        Z,
        torch.tensor(
            [[0, -1, 1], [2, 0, -1], [1, -1, -1], [0, 1, 2], [-1, 0, 0]], device=DEVICE
        ),
    ),
    "multilabel_soft_margin_loss": (
        F.multilabel_soft_margin_loss,
        Z,
        (SIGNS + 1) / 2,
    ),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(label_smoothing=0.1), Z3, Y3),
    "CrossEntropyLoss, sum": (nn.CrossEntropyLoss(reduction="sum"), Z3, Y3),
    "CrossEntropyLoss, ignore": (nn.CrossEntropyLoss(ignore_index=1), Z3, Y3),
    "NLLLoss": (nn.NLLLoss(), Z.log_softmax(1), Y),
    "MSELoss": (nn.MSELoss(), Z3, Z3.flip(0)),
    "HuberLoss": (nn.HuberLoss(reduction="sum", delta=0.5), Z3, Z3.flip(0)),
    "KLDivLoss": (nn.KLDivLoss(reduction="batchmean"), Z3.log_softmax(1), P3),
    "one number per sample": (F.mse_loss, Z[:, 0], Z[:, 1]),
    "empty batch": (F.cross_entropy, Z[:0], Y[:0]),
}


# torch's kl_div, called by the test itself, warns that its mean will change.
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("name", LAWS)
def test_sample_loss_is_the_criterion_on_a_batch_of_one(name):
    criterion, outputs, targets = LAWS[name]
    if len(outputs):
        assert_law(criterion, outputs, targets)
    else:
        assert sample_loss(criterion, targets)(outputs).shape == (0,)


# torch itself has no second derivative of the two margin losses.
@pytest.mark.parametrize(
    "name",
    sorted(
        LAWS.keys() - {"multi_margin_loss", "multilabel_margin_loss", "empty batch"}
    ),
)
def test_sample_loss_differentiates_twice(name):
    criterion, outputs, targets = LAWS[name]
    outputs = outputs[:2].detach().requires_grad_()
    objective = sample_loss(criterion, targets[:2])
    assert torch.autograd.gradgradcheck(objective, outputs)


def test_entry_weights_of_mse_loss_follow_the_law():
    weight = draw(5, 3, seed=3).exp()
    criterion: Callable[..., Tensor] = F.mse_loss  # torch < 2.7 types no weight.
    objective = sample_loss(partial(criterion, weight=weight), Z.flip(0))
    alone = [
        criterion(Z[n : n + 1], Z.flip(0)[n : n + 1], weight=weight[n : n + 1])
        for n in range(5)
    ]
    torch.testing.assert_close(objective(Z), torch.stack(alone))


def test_narrower_targets_do_not_narrow_the_loss():
    targets = ((SIGNS + 1) / 2).float()
    values = sample_loss(F.binary_cross_entropy_with_logits, targets)(Z)
    assert values.dtype == F64
    alone = F.binary_cross_entropy_with_logits(Z[:1], targets[:1].double())
    torch.testing.assert_close(values[0], alone)


def test_class_weights_stay_factors():
    outputs = torch.tensor(
        [[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]], dtype=F64, device=DEVICE
    )
    targets = torch.tensor([0, 1, 1], device=DEVICE)
    weight = doubles([10.0, 1.0])
    for criterion in (
        partial(F.cross_entropy, weight=weight),
        nn.CrossEntropyLoss(weight=weight),
    ):
        _, rows = values_and_gradient(sample_loss(criterion, targets), outputs)
        # By hand: w_y (softmax - onehot); softmax of (1, 0) is (0.7311, 0.2689).
        expected = [[-2.6894, 2.6894], [0.5, -0.5], [0.1192, -0.1192]]
        torch.testing.assert_close(rows, doubles(expected), atol=5e-5, rtol=0)
        leaf = outputs.clone().requires_grad_()
        (batch,) = torch.autograd.grad(criterion(leaf, targets), leaf)
        torch.testing.assert_close(rows / weight[targets].sum(), batch)
        first = doubles([-0.2241, 0.0417, 0.0099])
        torch.testing.assert_close(batch[:, 0], first, atol=5e-5, rtol=0)


def test_class_weights_and_ignored_elements():
    weight = draw(3, seed=5).exp()
    criterion = partial(F.cross_entropy, weight=weight, ignore_index=1)
    values = sample_loss(criterion, Y3)(Z3)
    for n in range(5):
        kept = [t for t in range(4) if Y3[n, t] != 1]
        terms = [-weight[Y3[n, t]] * Z3[n, :, t].log_softmax(0)[Y3[n, t]] for t in kept]
        torch.testing.assert_close(values[n], sum(terms) / len(kept))


def test_mean_over_nothing_is_nan_with_gradient_zero_as_in_torch():
    targets = Y3.clone()
    targets[2] = -100
    assert_law(F.cross_entropy, Z3, targets)
    values, gradient = values_and_gradient(sample_loss(F.cross_entropy, targets), Z3)
    assert values.isnan().tolist() == [False, False, True, False, False]
    assert not gradient.isnan().any()
    total = sample_loss(F.cross_entropy, targets, reduction="sum")
    assert total(Z3)[2] == 0


def test_batch_size_does_not_scale():
    # By hand: f = (w.x)^2 at outputs 1 and 2 is 1 and 4; its derivative 2 and 4.
    outputs = torch.tensor([[1.0], [2.0]])
    values, rows = values_and_gradient(
        sample_loss(nn.MSELoss(), torch.zeros(2, 1)), outputs
    )
    assert values.tolist() == [1, 4]
    assert rows.tolist() == [[2], [4]]


class Focal(nn.CrossEntropyLoss):
    """A subclass that calls its parent, and would be ignored by a look-up by type."""

    def forward(self, input, target):
        losses = super().forward(input, target)
        return (1 - torch.exp(-losses)) ** 2 * losses


class Squares(nn.Module):
    def forward(self, outputs, targets):
        return (outputs - targets["mean"]) ** 2 / targets["scale"]


def test_a_module_with_its_own_forward_is_called():
    loss = Focal()
    assert_law(loss, Z, Y)
    assert loss.reduction == "mean"


def test_a_callable_is_averaged_or_summed_over_each_samples_elements():
    targets = {"mean": Z3.flip(0), "scale": 2.0}
    losses = (Z3 - Z3.flip(0)) ** 2 / 2
    for given, expected in ((None, losses.mean((1, 2))), ("sum", losses.sum((1, 2)))):
        objective = sample_loss(Squares(), targets, reduction=given)
        torch.testing.assert_close(objective(Z3), expected)
    unreduced = sample_loss(partial(F.mse_loss, reduction="none"), Z3.flip(0))
    torch.testing.assert_close(unreduced(Z3), 2 * losses.mean((1, 2)))


def test_reduction_overrides_the_criterions_own():
    objective = sample_loss(F.cross_entropy, Y3, reduction="sum")
    assert_law(partial(F.cross_entropy, reduction="sum"), Z3, Y3, objective)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_token_loss_is_the_cross_entropy_of_one_sample(shift, reduction):
    logits, labels = draw(5, 4, 3), Y3.masked_fill(Y3 == 2, -7)
    labels[4] = -7

    def alone(logits, labels):
        logits, labels = logits[0], labels[0]
        if shift:
            logits, labels = logits[:-1], labels[1:]
        return F.cross_entropy(logits, labels, ignore_index=-7, reduction=reduction)

    assert_law(
        alone,
        logits,
        labels,
        token_loss(labels, shift=shift, ignore_index=-7, reduction=reduction),
    )
