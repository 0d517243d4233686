"""Lines that move the samples elsewhere and back, and blocks of lines."""

from __future__ import annotations

from fuzzed_builder import Builder
from fuzzed_features import Step
from fuzzed_layers import attention, recurrence
from fuzzed_sketch import function
from fuzzed_weights import weight


def over_time(b: Builder) -> None:
    """Move along time, or take a part of it."""
    t, i = b.shape[1], b.features
    where = f"(k % {t}).view(n, 1, 1).expand(-1, 1, {i})"
    b.add(
        b.pick(
            f"x = x.roll({b.number(1, 2)}, 1)",
            f"x = x[torch.arange(n, device=x.device), k % {t}]",
            f"x = x.gather(1, {where})",
            f"x = x.take_along_dim({where}, 1)",
            "x = x.cumsum(1)",
            "x = x.mean(1)",
            "x = x[:, -1]",
            "x = x.logsumexp(1)",
            "x = x.flip(1)",
            f"x = x[:, torch.arange({t}, device=x.device).flip(0)]",
            "x = x[:, ::2]",
            f"x = x * (torch.arange({t}, device=x.device) <= k[:, None])[..., None]",
        )
    )


def to_other_axes(b: Builder) -> None:
    b.add(
        b.pick(
            "x = x.transpose(1, 2)", "x = x.mT.contiguous()", "x = x.flatten(1)",
            f"x = x.reshape(n, -1, {b.pick(1, 2, b.shape[1])})", "x = x[:, None]",
            "x = x.unsqueeze(-1).repeat(1, 1, 1, 2)",
        )
    )  # fmt: skip


def to_a_sequence(b: Builder) -> None:
    i = b.features
    p = weight(b, i)
    b.add(
        b.pick(
            "x = x[:, None]",
            "x = x[..., None]",
            f"x = x.view(n, -1, {b.pick(1, 2)})",
            f"x = torch.stack([x, {p}.expand(n, -1)], 1)",
            f"x = torch.stack([x * {p}, x], 2)",
            f"x = x[:, :, None] * {p}",
            f"x = x[:, None] * {weight(b, 2, i)}",
        )
    )


def of_images(b: Builder) -> None:
    # Not to channels_last, where torch 2.13 differentiates a grouped convolution of
    # one sample wrongly, and ends the process for a group norm's weight alone.
    b.add(
        b.pick(
            "x = x.flatten(2)", "x = x.flatten(2).transpose(1, 2)", "x = x.flatten(1)",
            "x = x.mean((2, 3))", "x = x.permute(0, 2, 3, 1)", "x = x[:, :, 0]",
            "x = F.avg_pool2d(x, 2, ceil_mode=True)", "x = x.amax(-1)",
        )
    )  # fmt: skip


def to_time_first(b: Builder) -> None:
    b.add(
        b.pick(
            "x = x.transpose(0, 1)", "x = x.permute(1, 0, 2).contiguous()",
            "x = torch.stack(x.unbind(1))",
        ),
        layout="second",
    )  # fmt: skip


def to_tokens(b: Builder) -> None:
    i = b.features
    if b.yes():
        b.add(b.pick("x = x.flatten(0, 1)", f"x = x.reshape(-1, {i})"), layout="tokens")
    else:
        b.add(f"x = x.transpose(0, 1).reshape(-1, {i})", layout="time tokens")


def of_time_first(b: Builder) -> None:
    t, i = b.shape[0], b.features
    choice = b.number(0, 5)
    if choice == 0:
        b.add("x = x.transpose(0, 1)", layout="first")
    elif choice == 1:
        b.add(f"x = x[k % {t}, torch.arange(n, device=x.device)]", layout="first")
    elif choice == 2:
        b.add(b.pick("x = x.mean(0)", "x = x[-1]", "x = x.sum(0)"), layout="first")
    elif choice == 3:
        b.add(b.pick("x = x.flatten(0, 1)", f"x = x.reshape(-1, {i})"),
              layout="time tokens")  # fmt: skip
    elif choice == 4:
        token = weight(b, i)
        b.add(f"x = torch.cat([{token}.expand(1, n, {i}), x])",
              f"x = x + {weight(b, t, 1, i)}")  # fmt: skip
    else:
        w = weight(b, 2, t)
        b.add(b.pick("x = x.roll(1, 0)", "x = x.cumsum(0)", "x = x.flip(0)",
                     f"x = torch.einsum('tni,st->sni', x, {w})",
                     f"x = torch.tensordot({w}, x, 1)",
                     f"x = x + {weight(b, t, 1, i)}",
                     f"x = x * {weight(b, t, 1, 1)}"))  # fmt: skip


def back(b: Builder) -> None:
    """Bring the samples first."""
    i = b.features
    if b.layout == "second":
        b.add("x = x.transpose(0, 1)", layout="first")
    elif b.layout == "tokens":
        b.add(b.pick(f"x = x.view(n, -1, {i})", f"x = x.reshape(n, -1, {i})",
                     "x = x.unflatten(0, (n, -1))"), f"x = x.reshape(n, -1, {i})",
              layout="first")  # fmt: skip
    elif b.layout == "time tokens":
        b.add(f"x = x.reshape(-1, n, {i}).transpose(0, 1)", layout="first")


#: The shape of x may have changed.
WRAPPED = (
    "x = checkpoint(block, x, use_reentrant=False)",
    "x = block(x)",
    "x = block(x).tanh()",
)
#: It has not.
REPEATED = (
    "x = x + block(x)",
    "x = block(x) + x.sin()",
    "x = block(block(x))",
    "x = x + checkpoint(block, x, use_reentrant=False)",
    "x = x + block(x.clone())\nx = x + block(x.sin())",
    "x = x * block(x).detach() + x",
    "with torch.no_grad():\n    s = block(x)\nx = x - s",
    "z = block(x.clone())\nz += x\nx = z",
    "x = torch.where(x > 0, x, block(x.clone()))",
)
#: Positions in the order of their values, or some of them.
REGROUPED = (
    "order = x.detach().flatten(1).sum(1).argsort()\n"
    "x = block(x[order])[order.argsort()]",
    "chosen = x.detach().flatten(1).sum(1) > 0\n"
    "z = torch.zeros_like(x)\nz[chosen] = block(x[chosen])\nx = x + z",
    "chosen = (x.detach().flatten(1).sum(1) > 0).nonzero()[:, 0]\n"
    "x = x.index_add(0, chosen, block(x[chosen]))",
)


def block(b: Builder, steps: tuple[Step, ...]) -> None:
    """One or two lines as a function, and how it is called."""
    before = b.shape
    with b.opened() as lines:
        for _ in range(b.number(1, 2)):
            b.pick(*steps)(b)
        after = b.shape
    if not lines:
        return
    ways = [*WRAPPED]
    if after == before:
        # Time first, a position is of all samples.
        ways += REPEATED if b.layout == "second" else REPEATED + REGROUPED
    text = b.pick(*ways)
    name = f"block{len(b.sketch.lines)}"
    made = function(name, lines)
    called = f"{made}\n{text}".replace("block(", f"{name}(")
    b.add(called.replace("(block,", f"({name},"))


TIME_FIRST: tuple[Step, ...] = (of_time_first, attention, recurrence, of_time_first)
