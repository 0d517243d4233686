"""Lines that treat every position alike, wherever the samples stand in ``x``."""

from __future__ import annotations

from collections.abc import Callable

from fuzzed_builder import Builder
from fuzzed_weights import bias, new, weight

Step = Callable[[Builder], object]

SMOOTH = ("tanh", "sigmoid", "sin", "relu", "exp")
ACTIVATIONS = (
    "F.gelu(x)", "F.silu(x)", "F.softplus(x)", "F.elu(x)", "F.leaky_relu(x, 0.2)",
    "x.softmax(-1)", "F.log_softmax(x, -1)", "x.clamp(-1, 1)", "x * x.sigmoid()",
    "x.roll(1, -1)", "x.flip(-1)", "x.cumsum(-1)", "x * 0.5", "x.square()", "x.abs()",
    "x.contiguous()", "x.clone()", "F.normalize(1 + x * x, dim=-1)",
)  # fmt: skip


def linear(b: Builder) -> None:
    o, i = b.width(), b.features
    w = weight(b, o, i)
    b.add(
        b.pick(
            f"x = F.linear(x, {w}, {bias(b, o)})",
            f"x = F.linear(bias={bias(b, o)}, weight={w}, input=x)",
            f"x = F.linear(x, {weight(b, o, i)})",
        )
    )


def linear_module(b: Builder) -> None:
    wanted = b.yes()
    layer = b.module(f"nn.Linear({b.features}, {b.width()}, bias={wanted})")
    b.add(f"x = {layer}(x)")


def square_module(b: Builder) -> None:
    """The same layer may come twice."""
    layer = b.module(f"nn.Linear({b.features}, {b.features})")
    b.add(*b.pick((f"x = {layer}(x)",), (f"x = {layer}({layer}(x).tanh())",)))


def normed_module(b: Builder) -> None:
    layer = b.module(f"weight_norm(nn.Linear({b.features}, {b.width()}))")
    b.add(f"x = {layer}(x)")


def low_rank(b: Builder) -> None:
    """A frozen layer beside a product of two thin ones."""
    o, i = b.width(), b.features
    base = b.part(f"frozen({o}, {i})")
    down, up = weight(b, i, 1), weight(b, 1, o)
    b.add(f"x = F.linear(x, {base}) + 0.5 * (x @ {down}) @ {up}")


def product(b: Builder) -> None:
    o, i = b.width(), b.features
    w = weight(b, i, o)
    texts = [f"x = x @ {w}", f"x = torch.matmul(x, {w})", f"x = x.matmul({w})"]
    if b.rank == 2:
        texts += [f"x = torch.mm(x, {w})", f"x = x.mm({w})"]
        texts += [f"x = torch.addmm({weight(b, o)}, x, {w}, beta=0.5, alpha=2)"]
        texts += [f"x = ({weight(b, o, i)} @ x.t()).t()"]
    b.add(b.pick(*texts))


def product_with_a_vector(b: Builder) -> None:
    p = weight(b, b.features)
    texts = [f"x = (x @ {p})[..., None]", f"x = x * (x * {p}).sum(-1, keepdim=True)"]
    texts += [f"x = torch.einsum('...i,i->...', x, {p}).unsqueeze(-1)"]
    if b.rank == 2:
        texts += [f"x = torch.mv(x, {p})[:, None]"]
    b.add(b.pick(*texts))


def einsum(b: Builder) -> None:
    o, i = b.width(), b.features
    b.add(
        b.pick(
            f"x = torch.einsum('...i,io->...o', x, {weight(b, i, o)})",
            f"x = torch.einsum('oi,...i->...o', {weight(b, o, i)}, x)",
            f"x = torch.einsum('...i,i->...i', x, {weight(b, i)})",
            f"x = torch.einsum('...i,...j,oij->...o', x, x, {weight(b, 2, i, i)})",
        )
    )


def bilinear(b: Builder) -> None:
    o, i = b.number(1, 3), b.features
    if i <= 4:
        b.add(f"x = F.bilinear(x, x.sin(), {weight(b, o, i, i)}, {bias(b, o)})")


def layer_norm(b: Builder) -> None:
    i = b.features
    if i < 3:
        return
    layer = b.module(f"nn.LayerNorm({i})")
    b.add(
        b.pick(
            f"x = F.layer_norm(x, ({i},), {weight(b, i)}, {bias(b, i)})",
            f"x = F.layer_norm(x, ({i},), None, {weight(b, i)})",
            f"x = F.rms_norm(x, ({i},), {weight(b, i)}, 1e-3)",
            f"x = {layer}(x)",
        )
    )


def prelu(b: Builder) -> None:
    channels = b.shape[1] if b.layout == "first" or b.rank == 2 else 1
    b.add(f"x = F.prelu(x, {weight(b, b.pick(1, channels))})")


def activation(b: Builder) -> None:
    b.add(f"x = {b.pick(*ACTIVATIONS)}")


def activation_in_place(b: Builder) -> None:
    name = b.pick(*SMOOTH)
    plain = f"x = torch.{name}(x)"
    texts = [f"x = x.{name}_()", f"x = x.mul(0.5).{name}_()", f"torch.{name}_(x)"]
    if name == "relu":
        texts += ["x = F.relu(x, inplace=True)", f"{b.module('nn.ReLU(True)')}(x)"]
    b.add(b.pick(plain, *texts), plain)


def broadcast(b: Builder) -> None:
    """A parameter of some of the axes of ``x``, or of size one there."""
    axes = b.fixed[b.number(0, len(b.fixed)) :]
    p = weight(b, *(b.pick(size, size, 1) for size in axes))
    b.add(
        b.pick(
            f"x = x + {p}", f"x = x * {p}", f"x = x - {p}", f"x = {p} - x",
            f"x = {p} * x", f"x = x * (1 + {p})", f"x = x / (1 + {p}.square())",
            f"x = torch.add(x, {p}, alpha=3)", f"x = torch.sub(x, {p}, alpha=2)",
            f"x = torch.addcmul(x, x, {p}, value=0.5)", f"x = torch.mul({p}, x)",
            f"x = torch.addcmul({p}, x, {p})", f"x = {p} / (2 + x * x)",
            f"x = torch.where(x > 0, x, {p})", f"x = torch.where(x > 0, x, x * {p})",
            f"x = torch.where({p} > 0, x, {p} * x)", f"x = torch.lerp(x, {p}, 0.25)",
            f"x = torch.maximum(x, {p})", f"x = (x - {p}).square()",
            f"x = torch.sigmoid({p}) * x", f"x = x.exp().pow({p}.tanh())",
            f"x = x.sub({p}).div(1 + {p} * {p})", f"x = torch.add({p}, x)",
        )
    )  # fmt: skip


def broadcast_in_place(b: Builder) -> None:
    axes = b.fixed[b.number(0, len(b.fixed)) :]
    p = weight(b, *axes)
    sign = b.pick("+", "*", "-")
    b.add(
        b.pick(
            f"x {sign}= {p}",
            f"x = x.mul(2)\nx {sign}= {p}",
            f"x = x.add_({p}, alpha=0.5)",
            f"x = x.clone().mul_({p})",
            f"x = x.clone().copy_({p}) * x",
        ),
        f"x = x {sign} {p}",
    )


def whole(b: Builder) -> None:
    """A parameter's sum beside it: a number for all."""
    p = weight(b, b.width())
    b.add(b.pick(f"x = x * {p}.sum()", f"x = x + {p}.mean()", f"x = x * {p}[0]"))


def write(b: Builder) -> None:
    """Write a parameter into some columns."""
    i = b.features
    k = b.number(1, i)
    start = b.number(0, i - k)
    columns = f"x[..., {start}:{start + k}]"
    p = weight(b, b.pick(k, 1))
    b.add(
        b.pick(
            f"x = x.clone()\n{columns} = {p}",
            f"x = x.clone()\n{columns} += {p}",
            f"{columns} *= {p}",
            f"x = x * 2\nx.narrow(-1, {start}, {k}).add_({p})",
            f"z = torch.zeros_like(x)\nz[..., {start}:{start + k}] = {p}\nx = x + z",
            f"z = x.new_zeros(x.shape)\nz[...] = {weight(b, i)}\nx = z * x.sin()",
            f"x = x.clone()\nx[..., {start}] = {weight(b)}",
        ),
        f"x = x.clone()\n{columns} += {p}",
    )


def write_through_a_view(b: Builder) -> None:
    p = weight(b, b.features)
    b.add(
        b.pick(
            f"x = x.contiguous() * 1\nx.view(-1, {b.features}).mul_({p})",
            f"y = x.sin()\nz = y[..., 0]\nz *= {p}[0]\nx = y * y",
            f"y = x.contiguous() * 2\ny.flatten(0, -2)[:] += {p}\nx = y",
            f"y = x.exp().unsqueeze(0)\ny[0] += {p}\nx = y.squeeze(0)",
            f"x = x.mul(2).transpose(0, -1)\nx[-1:].add_({p}[0])\n"
            "x = x.transpose(0, -1)",
        )
    )


def beside(b: Builder) -> None:
    """Columns of a parameter beside those of ``x``."""
    k = b.number(1, 2)
    spread = f"{weight(b, k)}.expand(*x.shape[:-1], {k})"
    first, last = f"[{spread}, x]", f"[x, {spread}]"
    b.add(f"x = torch.cat({b.pick(first, last)}, -1)")


def gate(b: Builder) -> None:
    p = weight(b, b.features)
    b.add(
        b.pick(
            f"x = x * torch.sigmoid(x @ {p})[..., None]",
            f"x = torch.where(x.sum(-1, keepdim=True) > 0, x * {p}, x)",
            f"x = (x > 0) * {p} + x",
            f"x = x.masked_fill(x > 1, 0.0) * {p}",
            f"x = x + {p} * (x.detach()[..., :1] > 0)",
        )
    )


def halves(b: Builder) -> None:
    gated = "a, z = x.tensor_split(2, -1)\nx = a * z[..., :1].sigmoid()"
    b.add("x = F.glu(x, -1)", gated)


def columns(b: Builder) -> None:
    b.add(b.pick("x = x[..., 1:]", "x = x[..., :-1]", "x = x[..., ::2]"))


def hook(b: Builder) -> None:
    # Not on a view: torch 2.13 ends the process for some that were written to.
    b.add("x = x * 1\nif x.requires_grad:\n    x.register_hook(lambda g: 2 * g)")


def without_gradient(b: Builder) -> None:
    p = weight(b, b.features)
    b.add(
        b.pick(
            f"with torch.no_grad():\n    s = x * {p}\nx = x + s",
            f"x = x / (1 + {p}.detach().norm())",
            f"x = x + (x * {p}).detach()",
            f"with torch.no_grad():\n    s = {p}.abs().max()\nx = x * {p} / (1 + s)",
        )
    )


def unused(b: Builder) -> None:
    p = b.part(f"parameter({b.width()}, {b.width()})")
    b.add(f"x = x * 1.5  # {p} is used nowhere")


def added_to_a_new_one(b: Builder) -> None:
    """Accumulate into what begins as zeros."""
    p, q = new(b, b.features), weight(b, b.features)
    loop = f"for w in ({p}, {q}):\n    total = total + (x * w).tanh()"
    b.add(f"total = x * 0\n{loop}\nx = total")


PRODUCTS: tuple[Step, ...] = (
    linear, linear_module, square_module, normed_module, low_rank, product,
    product_with_a_vector, einsum, bilinear,
)  # fmt: skip
POINTWISE: tuple[Step, ...] = (
    layer_norm, prelu, activation, activation_in_place, broadcast, broadcast,
    broadcast_in_place, whole, beside, gate, halves, columns, added_to_a_new_one,
)  # fmt: skip
ODDITIES: tuple[Step, ...] = (
    write, write_through_a_view, hook, without_gradient, unused,
)  # fmt: skip
