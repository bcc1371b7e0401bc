"""Uninitialised memory must not affect results: with NaN in all new tensors, they stay the same to the bit.

TRITON_INTERPRET=1 tests Triton's operations as well, which takes minutes.
"""

import os

import numpy as np
import pytest
import torch
from torch import nn

from flameche.models.build import build_model
from flameche.training.kernels.stacked_trainer import StackedTrainer
from flameche.training.kernels.torch_ops import TorchOps
from flameche.training.models import Models
from flameche.training.trainer import Pull, TrainingPlan
from tests.conftest import tiny_federation

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PRIMITIVES = ["plain", *([pytest.param("fast", marks=pytest.mark.slow)] if INTERPRETED else [])]
SIZES = (9, 3, 5)  # with batches of 4: none is full everywhere, and clients rest


class Mixed(nn.Module):
    """What ResNet-18 is made of, on small maps: every kind of product, BatchNorm, a residual, pooling."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.c, self.d = nn.Conv2d(20, 20, 3, padding=1), nn.BatchNorm2d(20)
        self.e, self.f = nn.Conv2d(20, 6, 3, stride=2, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.pool, self.g, self.head = nn.MaxPool2d(3, 2, 1), nn.Conv2d(6, 9, 1), nn.Linear(9, 3)

    def forward(self, x):
        x = self.pool(torch.relu(self.b(self.a(x))))
        x = torch.relu(self.d(self.c(x)) + x)
        return self.head(torch.tanh(self.g(self.f(self.e(x)))).mean((2, 3)))


def model(kind, shape):
    if kind != "mixed":
        return build_model(kind, shape, 3, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Mixed()


def spoilt(new):
    """Fill with what no computation survives: NaN, or numbers far out of range."""
    if new.is_floating_point():
        return new.fill_(float("nan"))
    return new.fill_(True if new.dtype == torch.bool else torch.iinfo(new.dtype).max)


def spoil(monkeypatch):
    """Let no new tensor be zero by chance."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, _make=make, **k: spoilt(_make(*a, **k)))


def primitives(name):
    if name == "plain":
        return TorchOps()
    from flameche.training.kernels.triton_ops import TritonOps

    return TritonOps()


def played(kind, shape, name, implicit_convs, precision):
    """Train whole and resting stacks, with and without a pull, and judge; give all numbers."""
    federation = tiny_federation(sizes=SIZES, shape=shape)
    fast = StackedTrainer(
        model(kind, shape), federation, TrainingPlan(epochs=1, batch=4), 7, dtype=torch.float32,
        align=8, ops=primitives(name), implicit_convs=implicit_convs, precision=precision,
    )  # fmt: skip
    start, clients, pick = fast.initial(), np.arange(len(SIZES)), np.zeros(len(SIZES), int)
    fast._max_width = len(SIZES)  # one stack, in which some rest
    pull = Pull(Models(start.params * 0.9, start.buffers), strength=0.5)
    found = [fast.train(start, pick, clients, 1), fast.train(start, pick[:1], clients[:1], 2)]
    found.append(fast.train(start, pick[:2], clients[1:], 3, pull=pull))
    scores = np.concatenate(fast.judge(found[0], clients, clients, "test"))
    return [each for models in found for each in (models.params, models.buffers)], scores


CASES = [
    ("lenet5", (1, 28, 28), "small", "fp32"),
    ("mixed", (3, 8, 8), "small", "fp32"),
    ("mixed", (3, 8, 8), "small", "bf16"),
    ("mixed", (3, 8, 8), "all", "fp32"),
]


@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.parametrize(("kind", "shape", "implicit_convs", "precision"), CASES)
def test_nothing_is_read_that_nobody_wrote(kind, shape, implicit_convs, precision, name, monkeypatch):
    clean = played(kind, shape, name, implicit_convs, precision)
    spoil(monkeypatch)
    dirty = played(kind, shape, name, implicit_convs, precision)
    assert np.isfinite(clean[1]).all() and np.array_equal(clean[1], dirty[1])
    for ours, theirs in zip(clean[0], dirty[0], strict=True):
        assert torch.isfinite(ours).all() and torch.equal(ours, theirs)
