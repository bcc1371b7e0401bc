import sys

import pytest
import torch
from torch import nn

from flameche.errors import ConfigError
from flameche.models.build import build_model, choose_kind
from flameche.models.features import FeatureExtractor, find_head, to_input


def weights(model):
    return sum(p.numel() for p in model.parameters())


def test_lenet5_has_61706_weights_and_84_features():
    model = build_model("lenet5", (1, 28, 28), 10, seed=0)
    assert weights(model) == 61_706
    assert FeatureExtractor(model, (1, 28, 28), seed=0)(torch.zeros(2, 1, 28, 28).byte()).shape == (2, 84)


def test_resnet18_has_11176512_weights_without_its_head_and_512_features():
    model = build_model("resnet18", (3, 32, 32), 10, seed=0)
    assert weights(model) - weights(model.fc) == 11_176_512
    assert FeatureExtractor(model, (3, 32, 32), seed=0)(torch.zeros(2, 3, 32, 32).byte()).shape == (2, 512)


def test_the_stem_for_small_images_has_7680_weights_fewer_and_takes_no_pixels_away():
    model = build_model("resnet18-small", (3, 32, 32), 10, seed=0)
    assert sum(w.numel() for w in model.parameters()) - 5130 == 11_176_512 - 3 * 64 * (49 - 9)
    maps = []
    model.layer1.register_forward_hook(lambda *seen: maps.append(seen[2].shape))
    assert model.eval()(torch.zeros(2, 3, 20, 20)).shape == (2, 10) and maps == [(2, 64, 20, 20)]


def test_the_stem_without_pooling_has_as_many_weights_and_keeps_half_of_a_side():
    model = build_model("resnet18-unpooled", (3, 32, 32), 10, seed=0)
    assert weights(model) - weights(model.fc) == 11_176_512
    maps = []
    model.layer1.register_forward_hook(lambda *seen: maps.append(seen[2].shape))
    assert model.eval()(torch.zeros(2, 3, 20, 20)).shape == (2, 10) and maps == [(2, 64, 10, 10)]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((1, 8, 8), "small-cnn"), ((1, 28, 28), "lenet5"), ((3, 32, 32), "resnet18"), ((3, 8, 8), "small-cnn")],
)
def test_auto_picks_by_shape(shape, kind):
    assert choose_kind(shape) == kind
    assert build_model("auto", shape, 3, seed=0)(torch.zeros(2, *shape)).shape == (2, 3)


def test_initial_weights_depend_on_the_seed_alone_and_leave_torchs_generator_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, second, other = (build_model("small-cnn", (1, 8, 8), 10, seed=s) for s in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


class Backwards(nn.Module):
    """Its head is defined first and runs last."""

    def __init__(self, shape, classes):
        super().__init__()
        self.top = nn.Linear(7, classes)
        self.bottom = nn.Linear(shape[0] * shape[1] * shape[2], 7)

    def forward(self, x):
        return self.top(torch.relu(self.bottom(x.flatten(1))))


def test_the_head_is_the_linear_layer_that_runs_last_not_the_one_defined_last():
    assert find_head(Backwards((1, 4, 4), 3), (1, 4, 4)) == "top"


def test_a_named_head_is_cut_before():
    extractor = FeatureExtractor(Backwards((1, 4, 4), 3), (1, 4, 4), seed=0, head="bottom")
    assert extractor(torch.zeros(2, 1, 4, 4).byte()).shape == (2, 16)


def test_a_users_model_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0]*shape[1]*shape[2], classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    assert build_model("own_net:make", (1, 8, 8), 4, seed=0)(torch.zeros(1, 1, 8, 8)).shape == (1, 4)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("lenet", "must be one of"),
        ("no_such_module:make", "cannot be imported.*looked for in the current folder"),
        ("math:nothing", "cannot be imported"),
        ("lenet5", "at least 12 pixels"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_in_one_line(kind, said):
    with pytest.raises(ConfigError, match=said) as caught:
        build_model(kind, (1, 8, 8), 10, seed=0)
    assert "\n" not in str(caught.value)


def test_an_unknown_head_and_a_model_without_one_are_refused():
    with pytest.raises(ConfigError, match="not a layer"):
        FeatureExtractor(build_model("small-cnn", (1, 8, 8), 10, 0), (1, 8, 8), seed=0, head="tail")
    with pytest.raises(ConfigError, match="no linear layer"):
        find_head(nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), (1, 8, 8))


def test_the_extractors_batchnorm_is_the_identity():
    # A batch's own statistics would make an image's features depend on its neighbours.
    extractor = FeatureExtractor(build_model("resnet18", (3, 32, 32), 10, 0), (3, 32, 32), seed=0)
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    together, alone = extractor(images), extractor(images[:1])
    assert torch.allclose(together[:1], alone, rtol=1e-4, atol=1e-5)
    norm, x = extractor.model.bn1, torch.randn(2, 64, 3, 3)
    assert torch.allclose(norm(x), x, rtol=1e-4, atol=1e-5)


def test_a_trained_models_batchnorm_is_reset_to_the_identity():
    model = build_model("resnet18", (3, 32, 32), 10, 0)
    model.train()(torch.randn(8, 3, 32, 32))  # moves the running statistics
    x = torch.randn(2, 64, 3, 3)
    assert not torch.allclose(model.eval().bn1(x), x, rtol=1e-2)
    FeatureExtractor(model, (3, 32, 32), seed=0)
    assert torch.allclose(model.bn1(x), x, rtol=1e-4, atol=1e-5)


def raises(shape, classes):
    raise KeyError("not\nto be had")


def nothing(shape, classes):
    return None


def bare(shape, classes):
    return nn.Flatten()


def wrong_shape(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes + 1))


@pytest.mark.parametrize(
    ("factory", "said"),
    [("raises", "KeyError"), ("nothing", "nn.Module"), ("bare", "parameters"), ("wrong_shape", "logits")],
)
def test_a_users_factory_that_fails_is_refused_in_one_line(factory, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "users_nets", sys.modules[__name__])
    with pytest.raises(ConfigError, match=said) as caught:
        build_model(f"users_nets:{factory}", (1, 8, 8), 10, seed=0)
    assert "\n" not in str(caught.value)


def test_extractors_of_one_seed_agree_and_gaussian_differs_from_uniform():
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)

    def features(seed, weights, model_seed=0):
        model = build_model("small-cnn", (1, 8, 8), 10, model_seed)
        return FeatureExtractor(model, (1, 8, 8), seed=seed, weights=weights)(images)

    assert torch.equal(features(1, "gaussian", 0), features(1, "gaussian", 9))
    assert not torch.allclose(features(1, "gaussian"), features(2, "gaussian"))
    assert not torch.allclose(features(1, "gaussian"), features(1, "uniform"))


def test_kaiming_weights_have_variance_two_over_fan_in():
    model = build_model("lenet5", (1, 28, 28), 10, seed=0)
    FeatureExtractor(model, (1, 28, 28), seed=0)
    linear = model.body[7]
    assert linear.weight.var().item() == pytest.approx(2 / 400, rel=0.02)
    assert not linear.bias.any()


def test_inputs_are_scaled_to_minus_one_and_one():
    scaled = to_input(torch.tensor([0, 255], dtype=torch.uint8))
    assert scaled.tolist() == pytest.approx([-1.0, 1.0])
