"""The stacked trainer against the plain loop, in float64; on CUDA too where there is one (pytest -m gpu)."""

import numpy as np
import pytest
import torch
from torch import nn

from flameche.models.build import build_model
from flameche.models.features import to_input
from flameche.training.augment import augment_generator, augment_images, draw_round, transform_images
from flameche.training.kernels import stacked_trainer
from flameche.training.kernels.client_stack import batch_table, max_steps_and_batch, step_widths
from flameche.training.kernels.stacked_trainer import StackedTrainer
from flameche.training.kernels.translate import stack_network
from flameche.training.loop import LoopTrainer
from flameche.training.models import Models
from flameche.training.trainer import Pull, Sgd, TrainingPlan, batches
from tests.conftest import tiny_federation

SHAPES = {
    "small-cnn": (1, 8, 8),
    "lenet5": (1, 28, 28),
    "resnet18": (3, 32, 32),
    "resnet18-small": (3, 8, 8),
    "resnet18-unpooled": (3, 12, 12),
}
UNEQUAL = (6, 9, 3, 8, 17, 4, 13)  # with batches of 4: a client smaller than a batch, lone last samples
WILD = (2, 61, 5, 33, 16)
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def both(kind="small-cnn", sizes=UNEQUAL, device="cpu", model=None, dtype=torch.float64, more=None, **plan):
    """The plain loop and the stacked trainer, with the same settings."""
    federation = tiny_federation(sizes=sizes, shape=SHAPES[kind])
    plan = TrainingPlan(**{"epochs": 2, "batch": 4, **plan})
    return [
        cls(
            model() if model else build_model(kind, federation.shape, federation.classes, seed=0),
            federation, plan, 7, dtype=dtype, device=device, **options,
        )
        for cls, options in ((LoopTrainer, {}), (StackedTrainer, more or {}))
    ]  # fmt: skip


def different(start, rows, seed=0):
    """Models around one."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randn(rows, start.params.shape[1], generator=generator, dtype=torch.float64)
    return Models(
        start.params * (1 + 0.1 * shift.to(start.params)), start.buffers.repeat(rows, 1).contiguous()
    )


def gap(a, b):
    assert a.params.shape == b.params.shape and a.buffers.shape == b.buffers.shape
    pairs = ((a.params, b.params), (a.buffers, b.buffers))
    return max(float((x - y).abs().max()) if x.numel() else 0.0 for x, y in pairs)


def rounds(loop, fast, clients, numbers=(2,), rows=3, **more):
    """Play rounds by both; the graphs of later rounds are replayed."""
    clients = np.array(clients)
    pick = np.arange(len(clients)) % rows
    start = different(loop.initial(), rows)
    before = start.params.clone()
    found = []
    for number in numbers:
        found = [each.train(start, pick, clients, number, **more) for each in (loop, fast)]
        assert torch.equal(start.params, before), "the models given must stay as they are"
        assert not torch.equal(found[0].params, start.pick(pick).params)
        assert gap(*found) < 1e-9
    return found


@pytest.mark.parametrize(
    ("kind", "sizes", "plan"),
    [
        ("small-cnn", UNEQUAL, {"epochs": 3}),
        ("small-cnn", WILD, {"epochs": 1}),
        ("small-cnn", (3, 2), {"batch": 128}),
        ("lenet5", UNEQUAL, {}),
        ("lenet5", (12, 12, 12), {}),
        ("resnet18", (16, 17), {"epochs": 1, "batch": 8}),
        ("resnet18-small", (8, 9), {"epochs": 1, "batch": 8}),
        ("resnet18-unpooled", (8, 9), {"epochs": 1, "batch": 8}),
    ],
)
@pytest.mark.parametrize("align", [1, 8])
def test_a_round_equals_the_plain_loop(kind, sizes, plan, align, device):
    loop, fast = both(kind, sizes, device, more={"align": align}, **plan)
    rounds(
        loop, fast, range(len(sizes)), numbers=(1, 2) if "resnet18" not in kind or device == "cuda" else (2,)
    )


@pytest.mark.parametrize("implicit_convs", ["none", "first", "all"])
@pytest.mark.parametrize("align", [1, 8])
def test_whether_patches_are_laid_out_changes_no_number(implicit_convs, align, device):
    more = {"align": align, "implicit_convs": implicit_convs}
    for model in (None, lambda: seeded(lambda: Deep(8))):
        loop, fast = both(device=device, model=model, more=more)
        rounds(loop, fast, [4, 1, 6, 2, 0])


def test_rounds_with_fewer_clients_out_of_order_equal_the_plain_loop(device):
    loop, fast = both(device=device)
    for clients in ([4, 1, 6, 2, 0], [1], [3, 2], [6, 5, 4, 3, 2, 1, 0]):
        rounds(loop, fast, clients)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_width_of_the_stack_changes_no_number(width, device):
    loop, fast = both(device=device, more={"width": width})
    rounds(loop, fast, range(len(UNEQUAL)))


def test_a_small_budget_cuts_the_clients_into_equal_parts(device):
    loop, fast = both(device=device)
    fast._budget = 3 * fast._bytes_per_client
    rounds(loop, fast, range(len(UNEQUAL)))
    assert [key[0] for key in fast._stacks] == [3]


def test_a_budget_is_what_is_asked_for():
    _, fast = both(more={"budget_gib": 1 / 1024})
    assert fast._budget == 2**20 and 1 <= fast._budget // fast._bytes_per_client < 100


@pytest.mark.parametrize("sgd", [None, Sgd(0.05), Sgd(0.05, 0.5)])
def test_a_pull_moves_also_weights_that_no_image_meets(sgd, device):
    # 8x8 images: the last maps are 1x1 under 3x3 windows.
    def model():
        return seeded(lambda: Deep(8))

    loop, fast = both(device=device, model=model)
    pull = Pull(different(loop.initial(), 1, seed=3), strength=0.5)
    found = rounds(loop, fast, [3, 0, 1], pull=pull, sgd=sgd)
    assert gap(found[0], rounds(loop, fast, [3, 0, 1], sgd=sgd)[0]) > 1e-4


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


class Deep(nn.Module):
    """Small maps under windows of all kinds, with biases, a residual and activations."""

    def __init__(self, side):
        super().__init__()
        self.a = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.b, self.normed = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, momentum=0.3)
        self.c = nn.Conv2d(6, 5, (3, 2), stride=(2, 1), padding=(1, 0))
        self.d = nn.Conv2d(5, 7, 3, padding=1, stride=2)
        self.e, self.f = nn.Conv2d(7, 7, 3, padding=1), nn.Conv2d(7, 9, 3, stride=2, padding=1)
        self.g, self.h = nn.Conv2d(9, 9, 3, padding=1), nn.Conv2d(9, 4, 1)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x):
        x = nn.functional.relu(self.a(x))
        x = torch.relu(self.normed(self.b(x)) + x)
        x = torch.tanh(self.c(x))
        x = self.e(torch.sigmoid(self.d(x))).relu()
        x = nn.functional.silu(self.g(self.f(x)))
        return self.head(torch.flatten(self.pool(self.h(x)), 1))


class Normed(nn.Module):
    """BatchNorm twice, a frozen layer and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3)
        self.frozen, self.flat, self.head = nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.head(self.flat(self.frozen(self.norm(self.conv(x)).relu().view(x.size(0), -1))))


@pytest.mark.parametrize("rule", ["mean", "first", "local"])
@pytest.mark.parametrize("align", [1, 8])
def test_batchnorm_statistics_follow_the_loop_over_rounds(rule, align, device):
    model = lambda: seeded(Normed)  # noqa: E731
    loop, fast = both(model=model, device=device, bn_buffers=rule, more={"align": align})
    for number, clients in ((1, [0, 1, 2]), (2, [6, 2, 4, 0])):
        found = rounds(loop, fast, clients, numbers=(number,))
        assert float((found[0].buffers[0] - found[0].buffers[1]).abs().max()) > 1e-3
    assert loop.state().keys() == fast.state().keys()
    for key, kept in loop.state().items():
        np.testing.assert_allclose(fast.state()[key], kept, atol=1e-9)
    pick, models = np.arange(len(UNEQUAL)) % 3, different(loop.initial(), 3)
    assert np.array_equal(fast.accuracy(models, pick), loop.accuracy(models, pick))


@pytest.mark.parametrize("kind", SHAPES)
def test_accuracy_equals_the_plain_loops(kind, device):
    loop, fast = both(kind, (4, 4, 4, 4), device)
    models, pick = different(loop.initial(), 3), np.array([2, 0, 1, 0])
    found = fast.accuracy(models, pick)
    assert np.array_equal(found, loop.accuracy(models, pick)) and len(set(found)) > 1


@pytest.mark.parametrize("images", [1, 7, 2**13])
@pytest.mark.parametrize("part", ["train", "held", "test"])
def test_models_are_judged_alike_however_they_are_cut(images, part, device, monkeypatch):
    monkeypatch.setattr(StackedTrainer, "_images_per_pass", lambda *_: images)
    loop, fast = both(model=lambda: seeded(Normed), device=device)
    models, rng = different(loop.initial(), 3), np.random.default_rng(0)
    pick, clients = rng.integers(0, 3, 20), rng.integers(0, len(UNEQUAL), 20)
    for ours, theirs in zip(
        fast.judge(models, pick, clients, part), loop.judge(models, pick, clients, part), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)  # NaN where nothing is held out


@pytest.mark.parametrize("kind", ["small-cnn", "lenet5"])
@pytest.mark.parametrize("implicit_convs", ["none", "small", "all"])
@pytest.mark.parametrize("turn", [0.0, 20.0])
def test_flips_turns_and_shifts_are_those_of_the_plain_loop(kind, implicit_convs, turn, device):
    loop, fast = both(kind, device=device, more={"implicit_convs": implicit_convs}, augment=True, turn=turn)
    rounds(loop, fast, [5, 0, 4, 1], numbers=(1, 2))
    still, _ = both(kind, device=device, augment=turn > 0)
    start, pick, who = loop.initial(), np.zeros(2, np.int64), np.array([5, 0])
    assert gap(loop.train(start, pick, who, 1), still.train(start, pick, who, 1)) > 1e-6


def test_sgd_of_a_plan_is_that_of_the_plain_loop(device):
    loop, fast = both(device=device, sgd=Sgd(0.05, 0.9))
    rounds(loop, fast, [5, 0, 4, 1], numbers=(1, 2))
    adam, _ = both(device=device)
    start, pick, who = loop.initial(), np.zeros(2, np.int64), np.array([5, 0])
    assert gap(loop.train(start, pick, who, 1), adam.train(start, pick, who, 1)) > 1e-4
    rounds(loop, fast, [5, 0, 4, 1], sgd=Sgd(0.05))  # what is asked for comes before the plan's
    asked = loop.train(start, pick, who, 1, sgd=Sgd(0.05))
    assert gap(asked, adam.train(start, pick, who, 1, sgd=Sgd(0.05))) == 0


def test_batches_that_are_not_full_are_left_out_as_by_the_plain_loop(device):
    loop, fast = both(device=device, drop_last=True)
    rounds(loop, fast, [5, 0, 4, 1], numbers=(1, 2))
    still, _ = both(device=device)
    start, pick, who = loop.initial(), np.zeros(2, np.int64), np.array([5, 0])
    assert gap(loop.train(start, pick, who, 1), still.train(start, pick, who, 1)) > 1e-6


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 9)])
@pytest.mark.parametrize("turn", [0.0, 35.0])
def test_bytes_are_moved_as_floats_are(shape, turn):
    x = torch.randint(0, 256, (30, *shape), dtype=torch.uint8)
    index = torch.randint(0, 30, (2, 16))
    transforms = torch.from_numpy(draw_round([3, 8], np.array([[16, 11]]), 16, 5, 2, turn))
    ours = transform_images(x.permute(0, 2, 3, 1).contiguous(), index, transforms[0], turn).permute(
        0, 1, 4, 2, 3
    )
    assert ours.dtype == torch.uint8
    for m, (client, count) in enumerate([(3, 16), (8, 11)]):
        floats = augment_images(
            to_input(x[index[m, :count]], torch.float64), augment_generator(client, 5, 2), turn
        )
        assert torch.equal(to_input(ours[m, :count], torch.float64), floats)
        assert torch.equal(ours[m, count:], x[index[m, count:]])  # what fills a batch up stays as it is


def test_rooms_for_stacks_are_bounded(monkeypatch):
    monkeypatch.setattr(stacked_trainer, "MAX_STACKS", 2)
    loop, fast = both()
    for clients in ([0], [0, 1], [0, 1, 2]):
        rounds(loop, fast, clients)
    assert [key[0] for key in fast._stacks] == [2, 3]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_in_low_precision_a_round_is_near_the_plain_loop(precision, device):
    # Adam amplifies round-off where gradients are near zero: a weight moves by at most lr a step.
    loop, fast = both("lenet5", device=device, dtype=torch.float32, epochs=1, more={"precision": precision})
    clients = np.arange(len(UNEQUAL))
    start = different(loop.initial(), 1)
    found = [each.train(start, np.zeros(len(clients), int), clients, 1) for each in (loop, fast)]
    assert found[1].params.dtype == torch.float32
    transform_images = (found[0].params - start.params).abs().mean()
    off = (found[0].params - found[1].params).abs().mean()
    assert off < {"fp32": 0.01, "tf32": 0.1, "bf16": 0.5}[precision] * transform_images


def test_a_clients_work_is_its_batches_and_nothing_else():
    plan = TrainingPlan(epochs=2, batch=4)
    steps = [list(batches(size, plan, 0, 1, i)) for i, size in enumerate(UNEQUAL)]
    most, batch = max_steps_and_batch(UNEQUAL, plan)
    assert (most, batch) == (max(map(len, steps)), max(len(b) for mine in steps for b in mine)) == (8, 5)
    firsts = np.concatenate([[0], np.cumsum(UNEQUAL)[:-1]])
    work = batch_table(range(len(UNEQUAL)), UNEQUAL, firsts, plan, 6, 0, 1)
    for m, mine in enumerate(steps):
        assert (work.count[:, m] > 0).sum() == len(mine)
        for s, samples in enumerate(mine):
            assert np.array_equal(work.index[s, m, : work.count[s, m]], firsts[m] + samples)
            assert (work.index[s, m, work.count[s, m] :] == firsts[m] + samples[0]).all()
        assert work.index[:, m].min() >= firsts[m] and work.index[:, m].max() < firsts[m] + UNEQUAL[m]


def test_steps_narrow_as_clients_run_out_of_them():
    count = np.array([[4, 4, 4, 4, 4], [4, 4, 4, 0, 0], [4, 2, 0, 0, 0], [1, 0, 0, 0, 0]])
    assert step_widths(count, [5, 3, 2, 1]).tolist() == [5, 3, 2, 1]
    assert step_widths(count, [5, 3]).tolist() == [5, 3, 3, 3]


class Body(nn.Module):
    """A linear model with something in between."""

    def __init__(self, *layers, between=lambda x: x):
        super().__init__()
        self.body, self.head, self.between = nn.Sequential(*layers), nn.Linear(64, 3), between

    def forward(self, x):
        return self.head(self.between(self.body(x).flatten(1)))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Body(), True),
        (Body(nn.BatchNorm2d(1)), True),
        (Body(nn.Conv2d(1, 4, 3, padding=1), nn.LeakyReLU(), nn.AvgPool2d(2)), True),
        (Body(nn.Conv2d(1, 1, 3, padding="same")), False),
        (Body(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2)), False),
        (Body(nn.GroupNorm(1, 1)), False),
        (Body(nn.Dropout(0.5)), False),
        (Body(between=lambda x: nn.functional.dropout(x, 0.5)), False),
        (Body(between=lambda x: x + x), False),
        (Body(between=lambda x: 2 * x), False),
        (Body(between=lambda x: x if x.sum() > 0 else -x), False),
        (Body(nn.BatchNorm2d(1, momentum=None)), False),
        (Body(nn.BatchNorm2d(1, affine=False)), False),
    ],
)
def test_only_what_stacked_layers_cover_is_translated(model, expected):
    before = [value.clone() for value in model.state_dict().values()]
    assert (stack_network(model, (1, 8, 8)) is not None) is expected
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("between", "joined"),
    [
        ([nn.ReLU(), nn.MaxPool2d(2)], True),
        ([nn.MaxPool2d(2), nn.ReLU()], True),
        ([nn.ReLU(), nn.MaxPool2d(3, 2, 1)], False),
        ([nn.ReLU(), nn.MaxPool2d(4)], True),
    ],
)
def test_a_convolution_takes_its_pooling_along_where_windows_tile_the_map(between, joined):
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *between, nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, 1, 8, 8))
    program = stack_network(model, (1, 8, 8))
    assert program is not None
    kinds = [type(step.layer).__name__ for step in program.steps]
    assert (kinds == ["ImplicitConv", "MatMul"]) is joined
    assert program.reads_bytes


def test_weights_that_no_image_meets_are_left_out():
    model = build_model("resnet18", (3, 32, 32), 10, seed=0)
    program = stack_network(model, (3, 32, 32))
    assert program is not None
    assert program.weights.trained < 0.4 * sum(w.numel() for w in model.parameters())
