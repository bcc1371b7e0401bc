"""A network as a program over a stack of clients: its steps, where its weights lie, the gradient of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flameche.training.builder import Sliding, Untranslatable
from flameche.training.convolution import Convolution
from flameche.training.layers import Product
from flameche.training.layout import Layout
from flameche.training.models import read_module, write_module
from flameche.training.passes import Pass, Step, backward, forward
from flameche.training.primitives import Plain
from flameche.training.translate import Translator, fuse
from flameche.training.windows import Form

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Program:
    """A translated network."""

    steps: list[Step]
    weights: Layout
    stats: Layout
    images: Form
    classes: int

    @property
    def gathers(self) -> bool:
        """Tell whether the first layer reads bytes by itself, so that no images need to be laid out."""
        firsts = [step.layer for step in self.steps if 0 in step.inputs]
        return all(
            isinstance(layer, Convolution) or (isinstance(layer, Product) and layer.lower == "patches")
            for layer in firsts
        )

    def floats(self, plain: bool = True) -> int:
        """Estimate how many numbers one image takes in a training step: values, their gradients, patches.

        plain: torch's own primitives lay patches out for every convolution.
        """
        total = self.images.floats
        for step in self.steps:
            layer, out = step.layer, step.layer.form.floats
            total += 3 * out  # a value, its gradient and something in between
            if isinstance(layer, Product) and layer.lower == "patches":
                total += layer.form.pixels * layer.columns * (1 if layer.first else 2)
            if isinstance(layer, Convolution) and plain:
                height, width = layer.plan.window.out
                total += height * width * (layer.columns * (1 if layer.first else 2) + 3 * layer.form.pitch)
        return total

    def logits(self, run: Pass, data: Tensor, index: Tensor) -> Tensor:
        """Map samples index [M b] of data, bytes [n H W Ch], to logits [M b classes]."""
        return self.values(run, data, index)[:, :, 0, 0, : self.classes]

    def values(self, run: Pass, data: Tensor, index: Tensor) -> Tensor:
        """Give logits as a map [M b 1 1 pitch]."""
        run.data = (data, index)
        images = None
        if not self.gathers:
            images = run.do.images(data, index, self.images.pitch, run.weights.dtype)
        return forward(self.steps, run, images)

    def gradient(self, run: Pass, data: Tensor, labels: Tensor, index: Tensor) -> None:
        """Write the gradient of every client's mean loss over its real samples into run.grads."""
        assert run.count is not None
        logits = self.values(run, data, index)
        backward(self.steps, run, run.do.slope(logits, labels, index, run.count, self.classes))


def translate(
    module: nn.Module, shape: Shape, align: int = 1, trim: bool = True, sliding: Sliding = "small"
) -> Program:
    """Write a network as stacked layers, or raise `Untranslatable`.

    `align`: round channels up to a multiple. `trim`: leave out weights that no image meets. `sliding`: which
    convolutions are done without laying out patches.
    """
    found = Translator(module, shape, align, trim, sliding)
    if found.builder.weights.total > found.builder.weights.trained:  # now it is known where frozen ones begin
        found = Translator(module, shape, align, trim, sliding, found.builder.weights.trained)
    last = found.forms[-1]
    if last.pixels != 1 or not found.steps:
        raise Untranslatable("an output that is a map")
    return Program(
        fuse(found.steps), found.builder.weights, found.builder.stats, found.forms[0], last.channels
    )


def stacked_program(
    module: nn.Module,
    shape: Shape,
    align: int = 1,
    trim: bool = True,
    device: str = "cpu",
    sliding: Sliding = "small",
) -> Program | None:
    """Translate a network if that can be done and gives its numbers, tried on the device."""
    try:
        program = translate(module, shape, align, trim, sliding)
        return program if agrees(program, copy.deepcopy(module).to(device).double().train(), shape) else None
    except Exception:  # a user's own code can fail in any way
        return None


def agrees(program: Program, module: nn.Module, shape: Shape) -> bool:
    """Try two models on batches that are not full: the same gradients and statistics as the module's own."""
    generator = torch.Generator().manual_seed(0)
    params, buffers = read_module(module)
    device = params.device
    data = torch.randint(0, 256, (8, *shape), generator=generator, dtype=torch.uint8).to(device)
    labels = torch.randint(0, program.classes, (8,), generator=generator).to(device)
    rows, stats = torch.stack([params, params * 0.9]), torch.stack([buffers, buffers])
    packed = [rows.new_zeros(2, each.total) for each in (program.weights, program.stats)]
    program.weights.pack(rows, packed[0])
    program.stats.pack(stats, packed[1])
    index = torch.tensor([[0, 1, 2, 0], [4, 5, 6, 7]], device=device)
    count = torch.tensor([3, 4], device=device)
    grads = rows.new_zeros(2, program.weights.trained)
    run = Pass(Plain(), packed[0], packed[0], packed[1], count, grads)
    program.gradient(run, data.permute(0, 2, 3, 1).contiguous(), labels, index)
    after, found = stats.clone(), torch.zeros_like(rows)
    program.stats.unpack(packed[1], after)
    wide = torch.zeros_like(packed[0])
    wide[:, : program.weights.trained] = grads
    program.weights.unpack(wide, found)
    for i in range(2):
        write_module(module, rows[i], stats[i])
        module.zero_grad()
        own = index[i, : int(count[i])]
        loss = cross_entropy(module(data[own].double() / 127.5 - 1), labels[own])
        loss.backward()  # type: ignore[no-untyped-call]
        theirs = [torch.zeros_like(w) if w.grad is None else w.grad for w in module.parameters()]
        if not torch.allclose(torch.cat([g.flatten() for g in theirs]), found[i], rtol=1e-7, atol=1e-9):
            return False
        if not torch.allclose(read_module(module)[1], after[i], rtol=1e-9, atol=1e-9):
            return False
    return True
