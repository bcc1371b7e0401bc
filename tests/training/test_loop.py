import numpy as np
import pytest
import torch
from torch import nn

from flameche.errors import ConfigError
from flameche.models.build import build_model
from flameche.training.device import prepare_torch
from flameche.training.loop import LoopTrainer
from flameche.training.models import read_module, write_module
from flameche.training.trainer import TrainingPlan, batch_edges, batches
from tests.conftest import tiny_federation


def trainer(federation, kind="small-cnn", **plan):
    plan = TrainingPlan(**{"epochs": 2, "batch": 4, **plan})
    model = build_model(kind, federation.shape, federation.classes, seed=0)
    return LoopTrainer(model, federation, plan, seed=7, dtype=torch.float64)


def zeros(n):
    return np.zeros(n, np.int64)


def test_every_epoch_visits_every_sample_once():
    steps = list(batches(10, TrainingPlan(epochs=3, batch=4), seed=0, round=1, client=2))
    assert [len(step) for step in steps] == [4, 4, 2] * 3
    for epoch in range(3):
        assert sorted(np.concatenate(steps[3 * epoch : 3 * epoch + 3])) == list(range(10))


def test_a_lone_last_sample_joins_the_batch_before_it():
    steps = list(batches(9, TrainingPlan(epochs=1, batch=4), seed=0, round=1, client=0))
    assert [len(step) for step in steps] == [4, 5]


def test_a_client_smaller_than_a_batch_takes_one_step_an_epoch():
    assert [len(s) for s in batches(3, TrainingPlan(epochs=2, batch=8), 0, 1, 0)] == [3, 3]


def test_without_dropping_edges_are_as_they_always_were():
    """Of stored runs' batches; those of one sample too."""
    for size in range(40):
        for batch in range(1, 12):
            cuts = list(range(batch, size, batch))
            cuts = cuts[:-1] if cuts and size - cuts[-1] == 1 else cuts
            assert batch_edges(size, TrainingPlan(batch=batch)) == [0, *cuts, size]


@pytest.mark.parametrize(("size", "lengths"), [(8, [4, 4]), (9, [4, 4]), (11, [4, 4]), (4, [4]), (3, [3])])
def test_a_last_batch_that_is_not_full_can_be_left_out_unless_it_is_the_only_one(size, lengths):
    plans = (TrainingPlan(epochs=2, batch=4, drop_last=drop) for drop in (False, True))
    whole, dropped = (list(batches(size, plan, 0, 1, 0)) for plan in plans)
    assert [len(step) for step in dropped] == lengths * 2
    for epoch in (0, 1):  # the same order as otherwise: what is dropped is its end
        order = np.concatenate(whole)[epoch * size :]
        kept = np.concatenate(dropped[epoch * len(lengths) : (epoch + 1) * len(lengths)])
        assert kept.tolist() == order[: sum(lengths)].tolist()


def test_training_equals_a_hand_written_loop():
    federation = tiny_federation()
    ours = trainer(federation)
    trained = ours.train(ours.initial(), zeros(1), np.array([1]), round=3)
    model = build_model("small-cnn", (1, 8, 8), 3, seed=0).double().train()
    x, y = federation.train.of(1)
    x = (torch.from_numpy(x).double() / 255 - 0.5) / 0.5
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for index in batches(len(y), ours.plan, 7, 3, 1):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[index]), torch.from_numpy(y)[index]).backward()
        optimiser.step()
    assert torch.allclose(trained.params[0], read_module(model)[0], rtol=1e-9, atol=1e-12)


def test_clients_trained_together_equal_clients_trained_alone():
    federation = tiny_federation()
    ours = trainer(federation)
    together = ours.train(ours.initial(), zeros(4), np.arange(4), round=1)
    for i in range(4):
        alone = ours.train(ours.initial(), zeros(1), np.array([i]), round=1)
        assert torch.equal(together.params[i], alone.params[0])


def test_another_round_brings_another_order():
    ours = trainer(tiny_federation())
    first, second = (ours.train(ours.initial(), zeros(1), zeros(1), round=r) for r in (1, 2))
    assert not torch.equal(first.params, second.params)


def test_accuracy_is_that_of_the_picked_model_on_the_clients_own_test_set():
    federation = tiny_federation()
    ours = trainer(federation)
    start = ours.initial()
    two = ours.train(start, zeros(2), np.array([0, 1]), round=1)
    pick = np.array([0, 1, 1, 0])
    found = ours.accuracy(two, pick)
    model = build_model("small-cnn", (1, 8, 8), 3, seed=0).double().eval()
    for i in range(4):
        write_module(model, two.params[pick[i]], two.buffers[pick[i]])
        x, y = federation.test.of(int(federation.test_of[i]))
        guess = model((torch.from_numpy(x).double() / 255 - 0.5) / 0.5).argmax(1).numpy()
        assert found[i] == pytest.approx((guess == y).mean())


def test_local_batchnorm_statistics_stay_with_their_client_and_survive_a_restart():
    federation = tiny_federation(shape=(3, 32, 32))
    ours = trainer(federation, kind="resnet18", epochs=1, bn_buffers="local")
    start = ours.initial()
    trained = ours.train(start, zeros(2), np.array([0, 1]), round=1)
    kept = ours.state()["local_buffers"]
    assert np.array_equal(kept[0], trained.buffers[0].numpy())
    assert np.array_equal(kept[2], start.buffers[0].numpy())  # never took part
    again = trainer(federation, kind="resnet18", epochs=1, bn_buffers="local")
    again.restore(ours.state())
    assert np.array_equal(again.accuracy(start, zeros(4)), ours.accuracy(start, zeros(4)))


def test_a_batch_of_one_never_reaches_batchnorm():
    federation = tiny_federation(sizes=(5, 9), shape=(3, 32, 32))
    ours = trainer(federation, kind="resnet18", epochs=1)
    trained = ours.train(ours.initial(), zeros(2), np.arange(2), round=1)
    assert torch.isfinite(trained.params).all() and torch.isfinite(trained.buffers).all()


def test_augmentation_changes_training_and_is_drawn_from_the_seed():
    ours = trainer(tiny_federation(), augment=True)
    once, twice = (ours.train(ours.initial(), zeros(1), zeros(1), round=1) for _ in range(2))
    plain = trainer(tiny_federation())
    assert torch.equal(once.params, twice.params)
    assert not torch.equal(once.params, plain.train(plain.initial(), zeros(1), zeros(1), round=1).params)


class Noisy(nn.Module):
    """A model that draws from torch's own generator."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))

    def forward(self, x):
        return self.body(x)


def test_dropout_draws_from_the_seed_and_leaves_torchs_generator_alone():
    torch.manual_seed(0)
    found = []
    for _ in range(2):
        ours = LoopTrainer(Noisy(), tiny_federation(), TrainingPlan(epochs=1, batch=4), seed=7)
        before = torch.random.get_rng_state()
        start = ours.initial()
        start = type(start)(torch.zeros_like(start.params), start.buffers)
        found.append(ours.train(start, zeros(2), np.array([0, 1]), round=1).params)
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(found[0], found[1])


def test_batches_of_one_with_batchnorm_are_refused():
    with pytest.raises(ConfigError, match="at least 2"):
        trainer(tiny_federation(shape=(3, 32, 32)), kind="resnet18", batch=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_same_seed_gives_the_same_bits_and_the_cpus_numbers():
    prepare_torch("cuda")
    federation = tiny_federation(sizes=(40, 52), shape=(3, 32, 32))
    plan = TrainingPlan(epochs=2, batch=16)
    found = []
    for device in ("cuda", "cuda", "cpu"):
        model = build_model("resnet18", (3, 32, 32), 3, seed=0)
        ours = LoopTrainer(model, federation, plan, seed=7, device=device, dtype=torch.float64)
        found.append(ours.train(ours.initial(), zeros(2), np.arange(2), round=1).params.cpu())
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[0], found[2], rtol=1e-6, atol=1e-9)
