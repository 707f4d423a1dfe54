"""8-bit state: how far each code moves the step of RADAR from that with float32 state.

A small GPT and a small ViT are trained with float32 state. Every gradient of these runs is also given to copies of the
state that are stored in 8 bits after every step, and the step that each copy would make is compared with the true one:

    linear           127 or 255 equal steps up to the largest value of the block
    square root      v as the square of such a number (only for v)
    float, n bits    floating point with n bits of mantissa below the largest value of the block
    gradual, n bits  the same, and equal steps below the lowest factor of 2
    offset, n bits   floating point after an offset was added, which is 0: what aimopt uses, with 5 bits
    dynamic          the dynamic tree code of bitsandbytes and torchao (bitsandbytes' table)

The error is the mean of |step − true step| over the mean of |true step|, over all tensors that are large enough for 8
bits, and over the second half of the steps. A second table has the same error of AdamW, of real packages against
torch.optim.AdamW. bitsandbytes and torchao round to the nearest value.

Run `python benchmarks/int8_codes.py`; rows of packages that are not installed are left out. Set AIMOPT_DATA to a
folder with wikitext-2/wikitext-2.tar.xz to take that text instead of Python's manual.
"""

import argparse
import contextlib
import importlib
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from aimopt import RADAR, AdamW
from aimopt.paper.models.vit import ViT

BETA1, BETA2, GAMMA, ZETA = 0.9, 0.999, 0.1, 1e-16
SMALLEST = 4096  # elements; smaller tensors stay in float32


def linear(levels: int) -> Tensor:
    """Equal steps from 0 to 1."""
    return torch.arange(levels + 1) / levels


def floating(levels: int, mantissa: int) -> Tensor:
    """0, and `levels` values below 1 with this many bits of mantissa."""
    index = torch.arange(1 - levels, 1).double() - 1
    octave = torch.div(index, 2**mantissa, rounding_mode="floor")
    values = 2.0**octave * (1 + (index - octave * 2**mantissa) / 2**mantissa)
    return torch.cat([torch.zeros(1), (values / values[-1]).float()])


def gradual(levels: int, mantissa: int) -> Tensor:
    """The same with equal steps below the lowest factor of 2, down to 0."""
    bits = (torch.arange(levels + 1) << (23 - mantissa)).int()
    small = torch.arange(levels + 1) * 2.0 ** -(mantissa + 125)  # float32 numbers have this bottom as well
    values = torch.where(bits < 1 << 23, small.double(), bits.view(torch.float32).double() * 2)
    return (values / values[-1]).float()


def offset(levels: int, mantissa: int) -> Tensor:
    """Differences of floating-point numbers to the lowest of them."""
    bits = ((torch.arange(levels + 1) + (64 << mantissa)) << (23 - mantissa)).int()
    values = bits.view(torch.float32).double()
    return ((values - values[0]) / (values[-1] - values[0])).float()


def dynamic(signed: bool) -> Tensor | None:
    """The magnitudes of the dynamic tree code of bitsandbytes, or of torchao, which has the same table."""
    try:
        from bitsandbytes.functional import create_dynamic_map  # type: ignore[import-not-found]
    except ImportError:
        return None
    return create_dynamic_map(signed=signed).abs().unique()


def rounded(x: Tensor, levels: Tensor, block: int, stochastic: bool, keep_positive: bool) -> Tensor:
    """X after it was stored in this code."""
    flat = nn.functional.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
    scale = flat.abs().amax(1, keepdim=True)
    magnitude = (flat.abs() / torch.where(scale == 0, 1.0, scale)).clamp(max=1)
    above = torch.searchsorted(levels, magnitude).clamp(1, len(levels) - 1)
    low, high = levels[above - 1], levels[above]
    fraction = (magnitude - low) / (high - low)
    up = fraction > (torch.rand_like(fraction) if stochastic else torch.full_like(fraction, 0.5))
    if keep_positive:  # a second moment of 0 beside a first moment that is not would make a giant step
        up |= (low == 0) & (magnitude > 0)
    stored = torch.where(up, high, low) * scale * flat.sign()
    return stored.flatten()[: x.numel()].view_as(x)


@dataclass
class Candidate:
    """How both moments are stored, and the errors of the steps that they lead to."""

    name: str
    first: Tensor
    second: Tensor
    block: int = 128
    stochastic: bool = True
    keep_positive: bool = True
    errors: list[float] = field(default_factory=list)
    largest: float = 0.0
    state: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def store(self, e: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Both moments as they are read at the next step."""
        return (
            rounded(e, self.first, self.block, self.stochastic, keep_positive=False),
            rounded(v, self.second, self.block, self.stochastic, keep_positive=self.keep_positive),
        )


class Bfloat16(Candidate):
    """bfloat16 state, for comparison."""

    def store(self, e: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Rounded stochastically."""
        noise = [torch.randint(0, 1 << 16, x.shape, dtype=torch.int32) for x in (e, v)]
        stored = [((x.view(torch.int32) + r) & ~0xFFFF).view(torch.float32) for x, r in zip((e, v), noise, strict=True)]
        return stored[0], stored[1]


def candidates() -> list[Candidate]:
    """The codes that are compared."""
    nothing = torch.zeros(1)
    found = [
        Bfloat16("bfloat16", nothing, nothing),
        Candidate("m linear, v linear", linear(127), linear(255)),
        Candidate("m linear, v square root", linear(127), linear(255) ** 2),
    ]
    for bits in (3, 4, 5):
        name = f"m float {bits} bits, v float {bits} bits"
        found.append(Candidate(name, floating(127, bits), floating(255, bits)))
    for m, v in ((4, 4), (5, 4), (5, 5), (6, 6)):
        found.append(Candidate(f"m gradual {m} bits, v gradual {v} bits", gradual(127, m), gradual(255, v)))
    for m, v in ((4, 4), (5, 5), (6, 6)):
        found.append(Candidate(f"m offset {m} bits, v offset {v} bits", offset(127, m), offset(255, v)))
    used = offset(127, 5), offset(255, 5)
    for block in (64, 256):
        found.append(Candidate(f"m offset 5 bits, v offset 5 bits, blocks of {block}", *used, block))
    found.append(Candidate("m offset 5 bits, v offset 5 bits, nearest", *used, stochastic=False))
    signed, unsigned = dynamic(signed=True), dynamic(signed=False)
    if signed is not None and unsigned is not None:
        found.append(Candidate("dynamic", signed, unsigned, 256))
        found.append(
            Candidate("dynamic, nearest: bitsandbytes", signed, unsigned, 256, stochastic=False, keep_positive=False)
        )
    return found


def step_of(e: Tensor, v: Tensor, g: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor]:
    """RADAR's step per unit of learning rate, and the moments after it."""
    m = (BETA1 - GAMMA) * e + (1 - BETA1 + GAMMA) * g
    e = BETA1 * e + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * g * g
    return m / (v / (1 - BETA2**t) + ZETA).sqrt(), e, v


class SmallGPT(nn.Module):
    """A decoder of two blocks."""

    def __init__(self, vocabulary: int, width: int = 64, context: int = 32, layers: int = 2):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    before=nn.LayerNorm(width),
                    qkv=nn.Linear(width, 3 * width),
                    out=nn.Linear(width, width),
                    between=nn.LayerNorm(width),
                    rise=nn.Linear(width, 4 * width),
                    fall=nn.Linear(4 * width, width),
                )
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for x in self.parameters():
            if x.ndim > 1:
                nn.init.normal_(x, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores of the next token."""
        x = self.embed(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            q, k, v = block["qkv"](block["before"](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["out"](mixed.transpose(1, 2).flatten(2))
            x = x + block["fall"](nn.functional.gelu(block["rise"](block["between"](x))))
        scores: Tensor = self.head(self.norm(x))
        return scores


def text() -> str:
    """The first million characters of WikiText-2, or Python's manual."""
    archive = Path(os.environ.get("AIMOPT_DATA", "")) / "wikitext-2" / "wikitext-2.tar.xz"
    if not archive.is_file():
        return "\n".join(text for _, text in sorted(topics.items()))
    with tarfile.open(archive) as files:
        member = next(name for name in files.getnames() if name.endswith("train.tokens"))
        file = files.extractfile(member)
        assert file is not None
        return file.read().decode("utf-8")[:1_000_000]


Loss = Callable[[], Tensor]


def words(vocabulary: int = 500) -> Tensor:
    """The text as the numbers of its words; rare words share one."""
    split = text().split()
    counts: dict[str, int] = {}
    for word in split:
        counts[word] = counts.get(word, 0) + 1
    known = {word: i + 1 for i, word in enumerate(sorted(counts, key=lambda w: -counts[w])[: vocabulary - 1])}
    return torch.tensor([known.get(word, 0) for word in split])


def gpt(seed: int) -> tuple[nn.Module, Loss]:
    """A small GPT on words, and the loss of a new batch."""
    torch.manual_seed(seed)
    tokens, model, generator = words(), SmallGPT(500), torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        begin = torch.randint(len(tokens) - 33, (8, 1), generator=generator) + torch.arange(33)
        batch = tokens[begin]
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    return model, loss


def vit(seed: int) -> tuple[nn.Module, Loss]:
    """A small ViT on scikit-learn's digits, and the loss of a new batch."""
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.data / 16 - 0.5).float().view(-1, 1, 8, 8)
    labels = torch.tensor(digits.target)
    model = ViT(image=8, channels=1, patch=2, width=64, layers=2, heads=4, hidden=128)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        batch = torch.randint(len(images), (32,), generator=generator)
        return cross_entropy(model(images[batch]), labels[batch])

    return model, loss


def gradients(model: nn.Module, loss: Loss, steps: int) -> Iterator[list[Tensor]]:
    """The gradients of a run with float32 state, of the tensors that are large enough."""
    optimizer = RADAR(model.parameters(), lr=1e-3, gamma=GAMMA)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        yield [p.grad.clone() for p in model.parameters() if p.numel() >= SMALLEST and p.grad is not None]
        optimizer.step()


def measure(model: nn.Module, loss: Loss, steps: int, text: str = "") -> list[Candidate]:
    """The candidates whose names contain a text, with their errors."""
    found = [candidate for candidate in candidates() if text in candidate.name]
    true_state: list[tuple[Tensor, Tensor]] = []
    for t, grads in enumerate(gradients(model, loss, steps), start=1):
        if not true_state:
            true_state = [(torch.zeros_like(g), torch.zeros_like(g)) for g in grads]
            for candidate in found:
                candidate.state = list(true_state)
        true_steps = []
        for i, g in enumerate(grads):
            u, *moments = step_of(*true_state[i], g, t)
            true_state[i] = moments[0], moments[1]
            true_steps.append(u)
        size = sum(float(u.abs().sum()) for u in true_steps)
        top = max(float(u.abs().max()) for u in true_steps)
        for candidate in found:
            error = largest = 0.0
            for i, g in enumerate(grads):
                u, e, v = step_of(*candidate.state[i], g, t)
                candidate.state[i] = candidate.store(e, v)
                error += float((u - true_steps[i]).abs().sum())
                largest = max(largest, float(u.abs().max()))
            if t > steps // 2:
                candidate.errors.append(error / size)
                candidate.largest = max(candidate.largest, largest / top)
    return found


def packages() -> dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]]:
    """AdamW with 8-bit state, of every package that is installed."""
    found: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        f"aimopt AdamW, {dtype} state": partial(AdamW, lr=1e-3, weight_decay=0.0, state_dtype=dtype)
        for dtype in ("bfloat16", "int8")
    }
    for module, name in (("torchao.optim", "AdamW8bit"), ("bitsandbytes.optim", "AdamW8bit")):
        with contextlib.suppress(ImportError):
            optimizer = getattr(importlib.import_module(module), name)
            found[f"{module.split('.')[0]} {name}"] = partial(optimizer, lr=1e-3, weight_decay=0.0)
    return found


def measure_packages(model: nn.Module, loss: Loss, steps: int) -> dict[str, str]:
    """The error of each package's AdamW."""
    made: dict[str, tuple[list[Tensor], torch.optim.Optimizer]] = {}
    sizes: dict[str, list[float]] = {}
    for t, grads in enumerate(gradients(model, loss, steps), start=1):
        if not made:
            reference = {"reference": partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.0)}
            for name, make in (reference | packages()).items():
                params = [torch.zeros_like(g).requires_grad_() for g in grads]
                made[name] = params, make(params)
        steps_made: dict[str, list[Tensor]] = {}
        for name, (params, optimizer) in made.items():
            for p, g in zip(params, grads, strict=True):
                p.data.zero_()  # so that the step is not rounded
                p.grad = g.clone()
            optimizer.step()
            steps_made[name] = [p.detach().clone() for p in params]
        true_steps = steps_made["reference"]
        true_size = sum(float(u.abs().sum()) for u in true_steps)
        for name, own_steps in steps_made.items() if t > steps // 2 else ():
            error = sum(float((u - v).abs().sum()) for u, v in zip(own_steps, true_steps, strict=True))
            sizes.setdefault(name, []).append(error / true_size)
    return {name: f"{sum(errors) / len(errors):.2%}" for name, errors in sizes.items() if name != "reference"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare 8-bit codes of the state.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--codes", default="", help="only the codes whose names contain this text")
    arguments = parser.parse_args()
    steps = arguments.steps
    tables = {name: measure(*make(0), steps, arguments.codes) for name, make in (("GPT", gpt), ("ViT", vit))}
    print("mean error of the step, and its largest element over the largest true one\n")
    print(f"{'code':<48}" + "".join(f"{name:>18}" for name in tables))
    for row in zip(*tables.values(), strict=True):
        cells = [f"{sum(c.errors) / len(c.errors):9.2%} {c.largest:8.2f}" for c in row]
        print(f"{row[0].name:<48}" + "".join(f"{cell:>18}" for cell in cells))
    print("\nthe error of AdamW's step against torch.optim.AdamW")
    errors = [measure_packages(*make(0), steps) for make in (gpt, vit)]
    for name in errors[0]:
        print(f"{name:<48}" + "".join(f"{error[name]:>18}" for error in errors))


if __name__ == "__main__":
    main()
