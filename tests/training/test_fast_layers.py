"""The fast loop against the plain one, in float64, where rounding errors are negligible."""

import numpy as np
import pytest
import torch
from torch import nn

from flameche.models.build import build_model
from flameche.training import fast_layers
from flameche.training.fast_layers import FastConv2d, FastLoopTrainer, use_fast_layers
from flameche.training.loop import LoopTrainer
from flameche.training.trainer import Pull, Sgd, TrainingPlan
from tests.conftest import tiny_federation

UNEQUAL = (21, 40, 33)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def both(kind, federation, dtype=torch.float64, **plan):
    plan = TrainingPlan(**{"epochs": 2, "batch": 16, **plan})
    return [
        trainer(build_model(kind, federation.shape, federation.classes, 0), federation, plan, 7, dtype=dtype)
        for trainer in (LoopTrainer, FastLoopTrainer)
    ]


CASES = [
    ("lenet5", (1, 28, 28), UNEQUAL),
    ("lenet5", (3, 18, 20), UNEQUAL),
    ("small-cnn", (1, 8, 8), UNEQUAL),
    ("resnet18", (3, 32, 32), (16, 20)),
]


@pytest.mark.parametrize(("kind", "shape", "sizes"), CASES)
def test_a_round_of_unequal_clients_equals_the_plain_loops(kind, shape, sizes, monkeypatch):
    monkeypatch.setattr(fast_layers, "MIN_OUTPUTS", 0)
    plain, fast = both(kind, tiny_federation(sizes, shape), epochs=1 if kind == "resnet18" else 2)
    clients = np.arange(len(sizes))
    a, b = (t.train(t.initial(), 0 * clients, clients, round=1) for t in (plain, fast))
    assert (a.params - b.params).abs().max() < 1e-9
    if a.buffers.numel():
        assert (a.buffers - b.buffers).abs().max() < 1e-9
    for part in ("train", "test"):
        assert np.allclose(plain.judge(a, clients, clients, part), fast.judge(b, clients, clients, part))


def test_a_pull_and_sgd_equal_the_plain_loops():
    plain, fast = both("small-cnn", tiny_federation(UNEQUAL))
    clients = np.arange(3)
    pull = Pull(plain.initial(), 0.3)
    for how in ({"pull": pull}, {"sgd": Sgd(0.1)}, {"pull": pull, "sgd": Sgd(0.1, 0.5)}):
        a, b = (t.train(t.initial(), 0 * clients, clients, 1, **how) for t in (plain, fast))
        assert (a.params - b.params).abs().max() < 1e-9


@pytest.mark.parametrize("side", [1, 2, 3])
@pytest.mark.parametrize(
    ("window", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (5, 1, 2), (7, 2, 3), (4, 1, 2)]
)
def test_a_convolution_on_a_small_map_is_a_matrix_product(side, window, stride, padding):
    plain = nn.Conv2d(3, 4, window, stride, padding).double()
    fast = nn.Conv2d(3, 4, window, stride, padding).double()
    fast.load_state_dict(plain.state_dict())
    use_fast_layers(fast)
    assert type(fast) is FastConv2d
    x = torch.randn(5, 3, side, side, dtype=torch.float64, requires_grad=True)
    out, same = plain(x), fast(x)
    assert torch.allclose(out, same, atol=1e-12)
    wanted = torch.autograd.grad((out**2).sum(), [x, *plain.parameters()])
    given = torch.autograd.grad((same**2).sum(), [x, *fast.parameters()])
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(wanted, given, strict=True))


def test_of_equal_pixels_the_first_learns_and_none_below_zero(monkeypatch):
    monkeypatch.setattr(fast_layers, "MIN_OUTPUTS", 0)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    fast = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    fast.load_state_dict(plain.state_dict())
    use_fast_layers(fast)
    with torch.no_grad():  # one channel is always negative, and flat images make equal pixels
        for net in (plain, fast):
            net[0].bias.copy_(torch.tensor([1.0, -9.0]))
    x = torch.full((3, 1, 8, 8), -1.0)
    x[1, 0, 2:4, 3] = 2.0
    weight = torch.randn(3, 2, 4, 4)
    found = [torch.autograd.grad((net(x) * weight).sum(), list(net.parameters())) for net in (plain, fast)]
    assert torch.equal(plain(x), fast(x)) or torch.allclose(plain(x), fast(x), atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))
    assert not found[1][0][1].any()


def test_layers_of_a_users_own_and_watched_ones_stay_as_they_are():
    class Own(nn.Conv2d):
        pass

    model = nn.Sequential(Own(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    names = [name for name, _ in model.named_parameters()]
    use_fast_layers(model)
    assert type(model[0]) is Own and names == [name for name, _ in model.named_parameters()]
    watched = use_fast_layers(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)))
    seen = []
    watched[0].register_forward_hook(lambda *_: seen.append(1))
    watched(torch.zeros(1, 1, 8, 8))
    assert seen
