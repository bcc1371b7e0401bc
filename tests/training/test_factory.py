"""Which trainer is created on which device, and with which options."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from flameche.errors import ConfigError
from flameche.models.build import build_model
from flameche.training import factory
from flameche.training.factory import make_trainer
from flameche.training.kernels.stacked_trainer import StackedTrainer
from flameche.training.kernels.weight_layout import UnsupportedModel
from flameche.training.loop import LoopTrainer
from flameche.training.pool import PoolTrainer
from flameche.training.trainer import TrainingPlan
from flameche.training.vectorised import VectorisedTrainer
from tests.conftest import tiny_federation


class Grouped(nn.Module):
    """What torch.vmap knows and stacked layers do not."""

    def __init__(self, *between):
        super().__init__()
        self.body = nn.Sequential(nn.GroupNorm(1, 1), nn.Flatten(), *between, nn.Linear(64, 3))

    def forward(self, x):
        return self.body(x)


def make(wanted, model=None, augment=False, **options):
    federation = tiny_federation(sizes=(4, 6), shape=(1, 8, 8))
    model = model or build_model("small-cnn", federation.shape, federation.classes, seed=0)
    return make_trainer(wanted, model, federation, TrainingPlan(1, 4, augment=augment), 0, **options)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [("auto", PoolTrainer), ("pool", PoolTrainer), ("loop", LoopTrainer), ("vectorised", VectorisedTrainer)],
)
def test_on_a_cpu_the_pool_trains_unless_another_is_asked_for(wanted, kind):
    assert type(make(wanted)) is kind


def test_nothing_in_training_but_the_factory_knows_the_kernels():
    files = Path(factory.__file__).parent.glob("*.py")
    assert [f.name for f in files if "training.kernels" in f.read_text()] == ["factory.py"]


def test_a_pool_has_no_use_for_a_gpu():
    with pytest.raises(ConfigError, match="--device cpu"):
        make("pool", device="cuda")


def test_a_model_that_cannot_be_stacked_is_refused_only_where_that_was_asked_for():
    assert type(make("auto", Grouped(nn.Dropout()))) is PoolTrainer
    with pytest.raises(ConfigError, match=r'cannot be stacked \(dropout.*take "loop"'):
        make("vectorised", Grouped(nn.Dropout()))


@pytest.mark.parametrize("wanted", ["auto", "vectorised"])
def test_on_cuda_stacked_layers_come_first_then_vmap_then_the_loop(wanted, monkeypatch):
    made = []

    def pretend(name, kinds):
        def init(model, *given, device, **options):
            if type(model) not in kinds:
                raise UnsupportedModel(name)
            made.append((name, options))
            return name

        monkeypatch.setattr(factory, name, init)

    small = type(build_model("small-cnn", (1, 8, 8), 3, seed=0))
    pretend("StackedTrainer", {small})
    pretend("VectorisedTrainer", {small, Grouped})
    pretend("LoopTrainer", {small, Grouped})
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert make(wanted, device="cuda") == "StackedTrainer"
    assert made[-1][1] == {"precision": "tf32", "budget_gib": None}
    make(wanted, device="cuda", precision="bf16", memory=3.5, fresh=None)
    assert made[-1][1] == {"precision": "bf16", "budget_gib": 3.5, "fresh": None}
    assert torch.backends.cudnn.allow_tf32
    make(wanted, device="cuda", precision="fp32")
    assert not torch.backends.cudnn.allow_tf32
    assert make(wanted, augment=True, device="cuda") == "StackedTrainer"
    assert make(wanted, Grouped(), device="cuda") == "VectorisedTrainer"
    assert make("loop", device="cuda") == "LoopTrainer"
    if wanted == "auto":
        assert make(wanted, Grouped(nn.Dropout()), device="cuda") == "LoopTrainer"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("model", "kind"),
    [(None, StackedTrainer), (Grouped(), VectorisedTrainer), (Grouped(nn.Dropout()), LoopTrainer)],
)
def test_what_is_chosen_on_cuda_trains(model, kind):
    own = make("auto", model, device="cuda")
    assert type(own) is kind
    trained = own.train(own.initial(), np.zeros(2, np.int64), np.arange(2), 1)
    assert trained.finite and not torch.equal(trained.params[0], own.initial().params[0])
