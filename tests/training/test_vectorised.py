import numpy as np
import pytest
import torch
from torch import nn

from flameche.models.build import build_model
from flameche.training import loop as plain
from flameche.training import vectorised
from flameche.training.loop import LoopTrainer
from flameche.training.models import Models, read_module
from flameche.training.trainer import Pull, Sgd, TrainingPlan, batches
from flameche.training.vectorised import StackedModule, VectorisedTrainer, adam, group_steps, supports_vmap
from tests.conftest import tiny_federation

SHAPES = {"small-cnn": (1, 8, 8), "lenet5": (1, 28, 28), "resnet18": (3, 32, 32)}
UNEQUAL = (6, 9, 3, 8, 17, 4, 13)  # with batches of 4: a client smaller than a batch, lone last samples


def both(kind="small-cnn", sizes=UNEQUAL, dtype=torch.float64, model=None, width=None, **plan):
    """The plain loop and the vectorised trainer, alike."""
    federation = tiny_federation(sizes=sizes, shape=SHAPES[kind])
    plan = TrainingPlan(**{"epochs": 2, "batch": 4, **plan})
    loop, fast = (
        cls(
            model() if model else build_model(kind, federation.shape, federation.classes, seed=0),
            federation, plan, 7, dtype=dtype, **more,
        )
        for cls, more in ((LoopTrainer, {}), (VectorisedTrainer, {"width": width}))
    )  # fmt: skip
    return loop, fast


def different(start, rows, seed=0):
    """Models around one."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randn(rows, start.params.shape[1], generator=generator, dtype=torch.float64)
    return Models(
        start.params * (1 + 0.1 * shift.to(start.params)), start.buffers.repeat(rows, 1).contiguous()
    )


def gap(a, b):
    return max(float((x - y).abs().max()) if x.numel() else 0.0 for x, y in parts(a, b))


def parts(a, b):
    assert a.params.shape == b.params.shape and a.buffers.shape == b.buffers.shape
    return (a.params, b.params), (a.buffers, b.buffers)


def one_round(loop, fast, clients, pick=None, rows=3, round=2, **more):
    clients = np.array(clients)
    pick = np.arange(len(clients)) % rows if pick is None else np.array(pick)
    start = different(loop.initial(), rows)
    before = start.params.clone()
    found = [each.train(start, pick, clients, round, **more) for each in (loop, fast)]
    assert torch.equal(start.params, before), "the models given must stay as they are"
    assert not torch.equal(found[0].params, start.pick(pick).params)
    return found


@pytest.mark.parametrize(
    ("kind", "sizes", "plan"),
    [
        ("small-cnn", UNEQUAL, {"epochs": 3}),
        ("lenet5", UNEQUAL, {"epochs": 2}),
        ("lenet5", (12, 12, 12), {"epochs": 2}),
        ("resnet18", (16, 17), {"epochs": 1, "batch": 8}),
    ],
)
def test_a_round_equals_the_plain_loop(kind, sizes, plan, monkeypatch):
    loop, fast = both(kind, sizes, **plan)
    widths = stacked_widths(fast, monkeypatch)
    assert gap(*one_round(loop, fast, range(len(sizes)))) < 1e-9
    assert max(widths) > 1


def stacked_widths(fast, monkeypatch):
    """How many clients took each step together; a lone one does not go through vmap."""
    widths, step = [], fast.step
    monkeypatch.setattr(fast, "step", lambda params, *rest: (widths.append(len(params)), step(params, *rest)))
    return widths


def test_in_tiny_batches_a_resnet_is_as_near_to_the_loop_as_the_loop_to_itself(monkeypatch):
    # BatchNorm over four values leaves 1e-12 of round-off in a gradient, and Adam multiplies gradients near
    # zero by up to lr / eps = 1e5, so 1e-9 is out of reach of any reordered sum. The measure is the loop
    # with each batch's samples in reverse, which is the same round but for round-off.
    loop, fast = both("resnet18", (8, 8), epochs=1)
    widths = stacked_widths(fast, monkeypatch)
    found, ours = one_round(loop, fast, [0, 1])
    assert widths == [2, 2]
    monkeypatch.setattr(plain, "batches", lambda *a: (index[::-1].copy() for index in batches(*a)))
    start = different(loop.initial(), 3)
    reversed_ = loop.train(start, np.arange(2), np.arange(2), 2)
    assert 0 < gap(found, reversed_) < 1e-6
    assert gap(found, ours) < 10 * gap(found, reversed_)


def test_clients_out_of_order_from_repeated_models_equal_the_plain_loop():
    loop, fast = both()
    assert gap(*one_round(loop, fast, [4, 1, 6, 2, 0], pick=[2, 0, 2, 2, 0])) < 1e-9


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_width_of_the_stack_changes_no_number(width):
    loop, fast = both(width=width)
    assert gap(*one_round(loop, fast, range(len(UNEQUAL)))) < 1e-9


def test_one_client_alone_equals_the_plain_loop():
    loop, fast = both()
    assert gap(*one_round(loop, fast, [1])) < 1e-9


@pytest.mark.parametrize("plan", [{"augment": True}, {"augment": True, "turn": 20.0}, {"sgd": Sgd(0.1, 0.5)}])
def test_augmentation_and_sgd_are_the_plain_loops(plan):
    loop, fast = both(**plan)
    assert gap(*one_round(loop, fast, [5, 0, 4, 1])) < 1e-9


def test_the_pull_to_a_model_equals_the_plain_loops():
    loop, fast = both()
    pull = Pull(different(loop.initial(), 1, seed=3), strength=0.5)
    found = one_round(loop, fast, [3, 0, 1], pull=pull)
    assert gap(*found) < 1e-9
    assert gap(found[0], one_round(loop, fast, [3, 0, 1])[0]) > 1e-4


class Normed(nn.Module):
    """BatchNorm twice, a frozen layer and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3)
        self.frozen, self.flat, self.head = nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.head(self.flat(self.frozen(self.norm(self.conv(x)).relu().flatten(1))))


def normed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Normed()


@pytest.mark.parametrize("rule", ["mean", "first", "local"])
def test_batchnorm_statistics_follow_the_loop_over_rounds(rule):
    loop, fast = both(model=normed, bn_buffers=rule)
    for round, clients in ((1, [0, 1, 2]), (2, [6, 2, 4, 0])):
        found = one_round(loop, fast, clients, round=round)
        assert gap(*found) < 1e-9
        assert float((found[0].buffers[0] - found[0].buffers[1]).abs().max()) > 1e-3
    assert loop.state().keys() == fast.state().keys()
    for key, kept in loop.state().items():
        np.testing.assert_allclose(fast.state()[key], kept, atol=1e-9)
    pick = np.arange(len(UNEQUAL)) % 3
    models = different(loop.initial(), 3)
    assert np.array_equal(fast.accuracy(models, pick), loop.accuracy(models, pick))
    _, again = both(model=normed, bn_buffers=rule)
    again.restore(fast.state())
    assert np.array_equal(again.accuracy(models, pick), loop.accuracy(models, pick))


def test_in_float32_a_round_is_near_the_plain_loop():
    # Adam amplifies round-off where gradients are near zero: a weight moves by at most lr a step.
    loop, fast = both("lenet5", dtype=torch.float32, epochs=1)
    found = one_round(loop, fast, range(len(UNEQUAL)))
    assert found[1].params.dtype == torch.float32
    assert gap(*found) < 5e-3 and float((found[0].params - found[1].params).abs().mean()) < 1e-5


@pytest.mark.parametrize("kind", ["small-cnn", "lenet5", "resnet18"])
def test_accuracy_equals_the_plain_loops(kind):
    loop, fast = both(kind, sizes=(4, 4, 4, 4))
    models, pick = different(loop.initial(), 3), np.array([2, 0, 1, 0])
    found = fast.accuracy(models, pick)
    assert np.array_equal(found, loop.accuracy(models, pick)) and len(set(found)) > 1


@pytest.mark.parametrize("images", [1, 7, 20, 2**13])
@pytest.mark.parametrize("part", ["train", "held", "test"])
def test_models_are_judged_alike_however_they_are_cut(images, part, monkeypatch):
    monkeypatch.setattr(vectorised, "SCORE_IMAGES", images)
    loop, fast = both(model=normed)
    models, rng = different(loop.initial(), 3), np.random.default_rng(0)
    pick, clients = rng.integers(0, 3, 20), rng.integers(0, len(UNEQUAL), 20)
    for ours, theirs in zip(
        fast.judge(models, pick, clients, part), loop.judge(models, pick, clients, part), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)  # NaN where nothing is held out


def test_adam_equals_torchs_also_where_rows_have_counts_of_their_own():
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(5, 2, 6, generator=generator, dtype=torch.float64)
    grads[:, 0, :2] *= 1e-9  # where eps decides
    params = torch.ones(2, 6, dtype=torch.float64)
    m, v, t = torch.zeros_like(params), torch.zeros_like(params), torch.zeros(2, dtype=torch.float64)
    for step in range(5):
        rows = slice(0, 2) if step < 3 else slice(0, 1)
        adam(params[rows], m[rows], v[rows], t[rows], grads[step, rows], lr=0.01)
    for row, steps in ((0, 5), (1, 3)):
        weight = nn.Parameter(torch.ones(6, dtype=torch.float64))
        optimiser = torch.optim.Adam([weight], lr=0.01)
        for grad in grads[:steps, row]:
            weight.grad = grad.clone()
            optimiser.step()
        assert torch.allclose(params[row], weight.detach(), rtol=1e-13, atol=0)


def test_every_client_takes_its_steps_in_order_and_sizes_never_mix():
    lengths = [[4, 4, 2] * 2, [4, 5] * 2, [3] * 2, [4, 4, 4, 2] * 2]
    calls, taken = group_steps(lengths, full=4), [[] for _ in lengths]
    for group in calls:
        assert len({lengths[i][len(taken[i])] for i in group}) == 1
        for i in group:
            taken[i].append(lengths[i][len(taken[i])])
    assert taken == lengths


def test_full_batches_meet_though_epochs_differ_in_length():
    assert group_steps([[4, 4, 2] * 2, [4, 2] * 2], full=4) == [[0, 1], [1], [0, 1], [0, 1], [0], [0], [0]]
    assert group_steps([[4, 4]] * 3, full=4) == [[0, 1, 2]] * 2
    assert group_steps([], full=4) == []


def test_a_stack_of_models_leaves_its_module_and_rows_alone():
    module = normed().double().train()
    params, buffers = read_module(module)
    rows, stats = params[None].repeat(2, 1), buffers[None].repeat(2, 1)
    _, after = StackedModule(module)(rows, stats, torch.randn(2, 4, 1, 8, 8, dtype=torch.float64))
    assert torch.equal(read_module(module)[1], buffers) and torch.equal(stats[1], buffers)
    assert not torch.equal(after[0], buffers) and not torch.equal(after[0], after[1])


class Body(nn.Module):
    """A linear model with something in between."""

    def __init__(self, *layers, between=lambda x: x):
        super().__init__()
        self.body, self.head, self.between = nn.Sequential(*layers), nn.Linear(64, 3), between
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        return self.head(self.between(self.body(x).flatten(1)))


class Reassigns(Body):
    """Keeps its statistics where a functional call cannot see them."""

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Body(), True),
        (Body(nn.BatchNorm2d(1)), True),
        (Body(nn.GroupNorm(1, 1)), True),
        (Body(nn.Dropout(0.5)), False),
        (Body(nn.Dropout2d(0.1)), False),
        (Body(between=lambda x: nn.functional.dropout(x, 0.5)), False),
        (Body(between=lambda x: x + torch.randn_like(x)), False),
        (Body(between=lambda x: x if x.sum() > 0 else -x), False),
        (Body(nn.BatchNorm2d(1, momentum=None)), False),
        (Body(nn.BatchNorm2d(1, track_running_stats=False)), False),
        (Reassigns(), False),
    ],
)
def test_only_models_that_keep_their_numbers_are_stackable(model, expected):
    before = [value.clone() for value in model.state_dict().values()]
    state = torch.random.get_rng_state()
    assert supports_vmap(model, (1, 8, 8)) is expected
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("kind", SHAPES)
def test_our_own_models_are_stackable(kind):
    assert supports_vmap(build_model(kind, SHAPES[kind], 3, seed=0), SHAPES[kind])
