"""Lines for samples first: convolutions, norms over channels, attention, tables."""

from __future__ import annotations

from math import gcd

from fuzzed_builder import Builder
from fuzzed_features import Step
from fuzzed_weights import bias, new, weight


def _geometry(b: Builder) -> tuple[tuple[int, ...], str, int]:
    """Draw a convolution: its kernel, its options as text, and its groups."""
    sizes = b.shape[2:]
    kernel = tuple(b.number(1, min(size, 3)) for size in sizes)
    groups = b.pick(1, 1, gcd(b.shape[1], 2), b.shape[1])
    stride, dilation, padding = b.number(1, 2), b.number(1, 2), b.number(0, 2)
    if b.yes():
        stride, dilation = 1, 1
    options = f"stride={stride}, dilation={dilation}, padding={padding}"
    return kernel, options, groups


def convolution(b: Builder) -> None:
    kernel, options, groups = _geometry(b)
    if b.yes():
        # torch warns of an even kernel that is to leave the size as it is.
        padding = b.pick("same", "valid") if all(k % 2 for k in kernel) else "valid"
        options = f"padding='{padding}', dilation={b.number(1, 2)}"
    channels = b.shape[1]
    out = groups * b.number(1, 2)
    w, name = weight(b, out, channels // groups, *kernel), f"conv{len(kernel)}d"
    b.add(f"x = F.{name}(x, {w}, {bias(b, out)}, {options}, groups={groups})")


def convolution_module(b: Builder) -> None:
    kernel, options, groups = _geometry(b)
    channels = b.shape[1]
    out = b.pick(groups, 2 * groups, channels)
    mode = b.pick("zeros", "reflect", "replicate", "circular")
    layer = b.module(
        f"nn.Conv{len(kernel)}d({channels}, {out}, {kernel}, {options},"
        f" groups={groups}, padding_mode='{mode}', bias={b.yes()})"
    )
    b.add(f"x = {layer}(x)", f"x = {layer}(F.pad(x, (1, 1)))")


def transposed_convolution(b: Builder) -> None:
    kernel, options, groups = _geometry(b)
    channels, each = b.shape[1], b.number(1, 2)
    w = weight(b, channels, each, *kernel)
    name = f"conv_transpose{len(kernel)}d"
    p = bias(b, each * groups)
    layer = f"nn.ConvTranspose{len(kernel)}d({channels}, {each * groups}, {kernel}"
    b.add(
        b.pick(
            f"x = F.{name}(x, {w}, {p}, groups={groups}, {options})",
            f"x = {b.module(f'{layer}, {options}, groups={groups})')}(x)",
            f"x = F.{name}(x, {w}, {p}, stride=2, output_padding=1, groups={groups})",
        )
    )


def norm_over_channels(b: Builder) -> None:
    channels = b.shape[1]
    numbers = 1
    for size in b.shape[2:]:
        numbers *= size
    groups = b.pick(*(g for g in range(1, channels + 1) if channels % g == 0))
    if numbers * channels // groups < 3:
        return
    w, p = weight(b, channels), bias(b, channels)
    texts = [
        f"x = F.group_norm(x, {groups}, {w}, {p})",
        f"x = {b.module(f'nn.GroupNorm({groups}, {channels})')}(x)",
    ]
    if numbers > 2 and b.rank > 2:
        name = f"InstanceNorm{b.rank - 2}d"
        layer = b.module(f"nn.{name}({channels}, affine=True)")
        texts += [f"x = F.instance_norm(x, weight={w}, bias={p})", f"x = {layer}(x)"]
    b.add(b.pick(*texts))


def batch_norm(b: Builder) -> None:
    channels = b.shape[1]
    layer = b.module(f"nn.BatchNorm{max(b.rank - 2, 1)}d({channels})")
    mean, variance = f"{layer}.running_mean", f"{layer}.running_var"
    w, p = weight(b, channels), bias(b, channels)
    b.add(
        b.pick(f"x = {layer}(x)", f"x = F.batch_norm(x, {mean}, {variance}, {w}, {p})")
    )


def whole_norm(b: Builder) -> None:
    shape = b.shape[1:]
    if b.shape[-1] * b.shape[-2] > 3:
        b.add(f"x = F.layer_norm(x, {shape}, {weight(b, *shape)}, {bias(b, *shape)})")


def table(b: Builder) -> None:
    """Positions, each with a row of its own."""
    t, i = b.shape[1], b.features
    longer = new(b, t + 2, i)
    words = b.module(f"nn.Embedding({t + 1}, {i})")
    places = f"torch.arange({t}, device=x.device)"
    b.add(
        b.pick(
            f"x = x + {longer}[:{t}]",
            f"x = x + {longer}[None, 1:{t + 1}]",
            f"x = x + {words}({places})",
            f"x = x + F.embedding({places}, {weight(b, t, i)})",
            f"x = x * {longer}.narrow(0, 2, {t})",
            f"x = x + {words}({places}.expand(n, {t}))",
            f"x += {longer}[:{t}]",
            f"x = x + {words}.weight[:{t}].unsqueeze(0)",
        )
    )


def token(b: Builder) -> None:
    """A step of a parameter before or after the others."""
    i = b.features
    p = b.pick(weight(b, 1, 1, i), f"{weight(b, i)}.view(1, 1, {i})")
    spread = b.pick(f"{p}.expand(n, -1, -1)", f"{p}.repeat(n, 1, 1)")
    texts = [f"x = torch.cat([{spread}, x], 1)", f"x = torch.cat((x, {spread}), dim=1)"]
    texts += [f"x = torch.cat([{p}.expand(n, 1, {i}).tanh(), x], 1)"]
    texts += [f"z = torch.cat([{spread}, x[:, 1:]], 1)\nx = z + x"]
    b.add(b.pick(*texts))


def per_sample(b: Builder) -> None:
    """A parameter for some samples, or an entry of it for each."""
    i = b.features
    p, t = weight(b, i), weight(b, 3, i)
    ones = ", 1" * (b.rank - 2)
    words = b.module(f"nn.Embedding(12, {i}, padding_idx={b.pick(None, 3)})")
    shaped = f".view(n{ones}, {i})"
    b.add(
        b.pick(
            f"x = torch.where((k % 2 == 0).view(n, 1{ones}), x * {p}, x)",
            f"x = x + (k > 5).view(n, 1{ones}) * {p}",
            f"x = x + {t}[k % 3]{shaped}",
            f"x = x * F.embedding(k % 3, {t}){shaped}",
            f"x = x + {words}(k){shaped}",
            f"x = x.clone()\nx[k > 6] += {p}",
            f"x = x.clone()\nx[k % 2 == 0] = x[k % 2 == 0] * {p}",
            f"x = x + {p} * k.view(n, 1{ones})",
            f"x = torch.einsum('ni,n...i->n...i', {t}[k % 3], x)",
            f"x = x + F.one_hot(k % 3, 3).to(x){shaped.replace(str(i), '3')} @ {t}",
            f"x = x + F.embedding_bag((k % 3)[:, None], {t}){shaped}",
        )
    )


def left_product(b: Builder) -> None:
    t, i, s = b.shape[1], b.features, b.width()
    w = weight(b, s, t)
    b.add(
        b.pick(
            f"x = {w} @ x",
            f"x = torch.matmul({w}, x)",
            f"x = torch.einsum('nti,st->nsi', x, {w})",
            f"x = torch.einsum('st,nti->nsi', {w}, x)",
            f"x = torch.einsum('nab,abc->nac', x, {weight(b, t, i, s)})",
            f"x = torch.bmm({w}.expand(n, {s}, {t}), x)",
            f"x = torch.bmm(x, {weight(b, i, s)}.expand(n, -1, -1))",
            f"x = torch.baddbmm({weight(b, t, 1)}, x,"
            f" {weight(b, i, s)}.repeat(n, 1, 1))",
            f"x = x @ {weight(b, 1, i, s)}",
            f"x = torch.tensordot(x, {w}, dims=([1], [1])).transpose(1, 2)",
            f"x = F.linear(x.mT, {w}).mT",
        )
    )


def attention(b: Builder) -> None:
    first = b.layout == "first"
    i = b.features
    heads = b.pick(*(h for h in (1, 2) if i % h == 0))
    layer = b.module(
        f"nn.MultiheadAttention({i}, {heads}, batch_first={first}, bias={b.yes()})"
    )
    encoder = (
        f"nn.TransformerEncoderLayer({i}, {heads}, 4, 0.0, batch_first={first},"
        f" norm_first={b.yes()})"
    )
    texts = [
        f"x = {layer}(x, x, x, need_weights={b.yes()})[0]",
        f"z = x.sin()\nx = x + {layer}(z, x, z * 2, need_weights=False)[0]",
    ]
    if i > 2:
        texts.append(f"x = {b.module(encoder)}(x)")
    if first:
        texts.append(
            f"x = {layer}(x, x, x, key_padding_mask=(k[:, None] % 2 < "
            f"torch.arange({b.shape[1]}, device=x.device)))[0]"
        )
    b.add(b.pick(*texts))


def learned_queries(b: Builder) -> None:
    i, s = b.features, b.number(1, 3)
    q, w = weight(b, s, i), weight(b, i, i)
    texts = [f"x = F.scaled_dot_product_attention({q}.expand(n, -1, -1), x @ {w}, x)"]
    texts += [f"x = ({q} @ (x @ {w}).mT).softmax(-1) @ x"]
    texts += [f"x = torch.einsum('si,nti->nst', {q}, x)"]
    b.add(b.pick(*texts))


def recurrence(b: Builder) -> None:
    """The same weights at every step."""
    i, o = b.features, b.number(1, 3)
    axis = 1 if b.layout == "first" else 0
    w, u = weight(b, o, i), weight(b, o)
    layer = b.module(f"nn.Linear({i}, {o})")
    steps = f"x.unbind({axis})"
    if b.yes():
        b.add(f"x = torch.stack([{layer}(s) for s in {steps}], {axis})")
        return
    b.add(
        b.pick(
            f"h = 0.0\nfor s in {steps}:\n"
            f"    h = torch.tanh(F.linear(s, {w}) + h * {u})\nx = h",
            f"x = sum({layer}(s).tanh() for s in {steps})",
        ),
        layout="first",
    )


FLAT: tuple[Step, ...] = (batch_norm, norm_over_channels, per_sample)
CHANNELS: tuple[Step, ...] = (
    convolution, convolution_module, transposed_convolution, norm_over_channels,
    batch_norm, whole_norm, per_sample,
)  # fmt: skip
SEQUENCES: tuple[Step, ...] = (
    table, token, per_sample, left_product, attention, learned_queries, recurrence,
)  # fmt: skip
