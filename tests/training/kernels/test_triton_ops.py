"""The Triton operations against those in torch; on a GPU, or with TRITON_INTERPRET=1."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")
CUDA = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not CUDA and os.environ.get("TRITON_INTERPRET") != "1",
        reason="needs a CUDA device or TRITON_INTERPRET=1",
    ),
]

from flameche.training.kernels.conv_geometry import ConvPool, MapShape, Window  # noqa: E402
from flameche.training.kernels.torch_ops import TorchOps  # noqa: E402
from flameche.training.kernels.triton_conv import KernelShape, Tile  # noqa: E402
from flameche.training.kernels.triton_ops import TritonOps  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"


def close(found, expected, tolerance=2e-5):
    assert found.shape == expected.shape
    off, size = (found.double() - expected.double()).abs().max(), expected.double().abs().max()
    assert off <= tolerance * max(float(size), 1.0), f"off by {float(off)} of {float(size)}"


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE)


def whole(*shape, below, seed=0, dtype=torch.int64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, below, shape, generator=generator).to(DEVICE, dtype)


def strided(rows, *shape, seed=0):
    """Rows with something between them, as in packed models."""
    numbers = torch.Size(shape).numel()
    return random(rows, numbers + 24, seed=seed)[:, :numbers].unflatten(1, shape)


WINDOWS = [
    Window(MapShape(6, 7, 3, 8), (3, 3), (1, 1), (1, 1)),
    Window(MapShape(6, 7, 6, 8), (3, 2), (2, 1), (1, 0)),
    Window(MapShape(8, 8, 16, 16), (3, 3), (2, 2), (1, 1)),
    Window(MapShape(2, 2, 16, 16), (1, 1), (2, 2), (0, 0)),
    Window(MapShape(10, 10, 6, 8), (5, 5), (1, 1), (0, 0)),
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("append_one", [False, True])
def test_patches_are_laid_out_and_folded_alike(window, append_one):
    plain, fast, map_shape = TorchOps(), TritonOps(), window.map_shape
    columns = -(-(window.taps * map_shape.channels + 1) // 8) * 8
    x = random(2, 3, map_shape.height, map_shape.width, map_shape.pitch)
    x[..., map_shape.channels :] = 0
    close(fast.im2col(x, window, columns, append_one), plain.im2col(x, window, columns, append_one))
    patches = random(2, 3 * window.out[0] * window.out[1], columns)
    for into in (None, x):
        found, expected = (
            ops.col2im(patches, window, None if into is None else into.clone()) for ops in (fast, plain)
        )
        close(found, expected)
    data = whole(9, map_shape.height, map_shape.width, map_shape.channels, below=256, dtype=torch.uint8)
    given = (data, whole(2, 3, below=9), window, columns, append_one, torch.float32)
    close(fast.im2col_images(*given), plain.im2col_images(*given))


POOLS = [
    *WINDOWS[:3],
    Window(MapShape(8, 8, 16, 16), (2, 2), (2, 2), (0, 0)),
    Window(MapShape(9, 9, 4, 4), (2, 2), (3, 3), (0, 0)),
]


@pytest.mark.parametrize("window", POOLS)
@pytest.mark.parametrize("relu", [False, True])
def test_pooling_finds_the_same_places(window, relu):
    plain, fast, map_shape = TorchOps(), TritonOps(), window.map_shape
    x = random(2, 3, map_shape.height, map_shape.width, map_shape.pitch).round(
        decimals=1
    )  # with equal values
    (y, where), (y2, where2) = plain.max_pool(x, window, relu), fast.max_pool(x, window, relu)
    close(y2, y)
    assert torch.equal(where2, where)
    grad = random(*y.shape, seed=1)
    close(fast.max_pool_backward(grad, where, window), plain.max_pool_backward(grad, where, window))


SLIDES = [  # map, window, stride, padding, outputs, pooling, bytes
    ((28, 28, 1), (5, 5), (1, 1), (2, 2), 8, 2, True),
    ((14, 14, 8), (5, 5), (1, 1), (0, 0), 16, 2, False),
    ((9, 7, 3), (3, 2), (2, 1), (1, 0), 5, 1, True),
    ((9, 8, 8), (3, 2), (1, 1), (1, 1), 8, 2, False),
    ((8, 8, 16), (3, 3), (1, 1), (1, 1), 32, 2, False),
    ((6, 7, 4), (3, 3), (2, 2), (1, 1), 3, 1, False),
    ((4, 4, 64), (3, 3), (2, 2), (1, 1), 128, 1, False),
    ((4, 4, 32), (1, 1), (2, 2), (0, 0), 64, 1, False),
    ((11, 10, 3), (2, 3), (1, 2), (1, 1), 4, 4, False),
    ((9, 9, 1), (3, 3), (1, 1), (1, 1), 1, 2, True),
]


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding", "outputs", "pool", "images"), SLIDES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_that_lays_nothing_out_equals_one_that_does(
    shape, kernel, stride, padding, outputs, pool, images, relu, bias
):
    plain, fast = TorchOps(), TritonOps()
    height, width, channels = shape
    geometry = ConvPool(Window(MapShape(*shape, channels), kernel, stride, padding), pool)
    columns = kernel[0] * kernel[1] * channels + bias
    weights = strided(2, columns, outputs, seed=1)
    source = random(2, 3, height, width, channels)
    if images:
        source = (whole(9, height, width, channels, below=256, dtype=torch.uint8), whole(2, 3, below=9))
    theirs, ours = (ops.conv_pool(source, weights, geometry, bias, relu, True) for ops in (plain, fast))
    close(ours.y, theirs.y)
    assert torch.equal(ours.where, theirs.where)
    close(fast.conv_pool(source, weights, geometry, bias, relu, False).y, theirs.y)
    grad = random(*theirs.y.shape, seed=2)
    into = None if images or not relu else random(2, 3, height, width, channels, seed=3)
    found = []
    for ops, saved in ((plain, theirs), (fast, ours)):
        out = strided(2, columns, outputs).zero_()
        onto = None if into is None else into.clone()
        back = ops.conv_pool_backward(
            grad.clone(), saved, weights, geometry, relu, out, bias, onto, not images
        )
        found.append((out, back))
    close(found[1][0], found[0][0], 1e-4)
    assert (found[1][1] is None) is images
    if not images:
        close(found[1][1], found[0][1])


LENET = ConvPool(Window(MapShape(28, 28, 1, 1), (5, 5), (1, 1), (2, 2)), 2)
STEM = ConvPool(Window(MapShape(32, 32, 3, 3), (7, 7), (2, 2), (3, 3)))
BLOCK = ConvPool(Window(MapShape(8, 8, 64, 64), (3, 3), (1, 1), (1, 1)))


@pytest.mark.parametrize(
    ("geometry", "outputs", "images", "width", "tiles"),
    [
        (LENET, 8, True, 4, {"forward": Tile(128, 16, 32), "weight": Tile(32, 64, 32)}),
        (LENET, 8, True, 2, {"forward": Tile(128, 16, 32), "weight": Tile(64, 64, 32, 8)}),
        (STEM, 64, True, 4, {"forward": Tile(64, 64, 64, 4, 2), "weight": Tile(32, 64, 64)}),
        (BLOCK, 64, False, 4, {"weight": Tile(32, 64, 64)}),
        (BLOCK, 64, False, 2, {"forward": Tile(128, 64, 64), "weight": Tile(32, 64, 64)}),
        (BLOCK, 64, False, 2, {"input": Tile(128, 64, 64)}),
    ],
)  # fmt: skip
def test_tiles_are_those_that_were_fastest(geometry, outputs, images, width, tiles):
    shape = KernelShape(geometry, outputs, images, width)
    assert {kernel: shape.tile(kernel) for kernel in tiles} == tiles


def test_matrices_of_small_maps_are_built_and_collected_alike():
    plain, fast, table = TorchOps(), TritonOps(), Window(MapShape(2, 2, 8, 8), (3, 3), (1, 1), (1, 1)).table()
    weights, wide = strided(2, 9, 8, 16), random(2, 32, 64, seed=1)
    close(fast.expand_taps(weights, table), plain.expand_taps(weights, table))
    found = [strided(2, 9, 8, 16).zero_() for _ in range(2)]
    for ops, out in zip((plain, fast), found, strict=True):
        ops.collect_taps(wide, table, out)
    close(found[1], found[0])


@pytest.mark.parametrize("shape", [(3, 5, 4, 4, 24), (2, 7, 1, 1, 128), (2, 40, 8, 8, 8)])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_batchnorm_counts_real_samples_only(shape, residual, relu):
    plain, fast, (clients, batch, *_, channels) = TorchOps(), TritonOps(), shape
    x, count = random(*shape) * 2 + 3, torch.tensor([batch, 2, 0][:clients], device=DEVICE)
    weight, bias = strided(clients, channels, seed=1), strided(clients, channels, seed=2)
    more = random(*shape, seed=3) if residual else None
    grad = random(*shape, seed=4)
    for m in range(clients):
        grad[m, int(count[m]) :] = 0
    found, norms = [], []
    for ops in (plain, fast):
        running = (strided(clients, channels, seed=5), strided(clients, channels, seed=6))
        saved = ops.batch_norm(x, count, weight, bias, running, 0.1, 1e-5, more, relu)
        norms.append((saved.y, saved.mean, saved.scale, *running))
        found.append(saved)
    for ours, theirs in zip(norms[1], norms[0], strict=True):
        close(ours, theirs)
    backs = []
    for ops in (plain, fast):
        out = (strided(clients, channels).zero_(), strided(clients, channels).zero_())
        backs.append((*ops.batch_norm_backward(grad.clone(), found[0], count, weight, out, relu), *out))
    for ours, theirs in zip(backs[1], backs[0], strict=True):
        close(ours, theirs, 1e-4)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_activation_and_bias_go_there_and_back_alike(relu, biased):
    plain, fast = TorchOps(), TritonOps()
    bias, grad = strided(3, 24, seed=1) if biased else None, random(3, 40, 1, 1, 24, seed=2)
    found = []
    for ops in (plain, fast):
        y, back, out = random(3, 40, 1, 1, 24), grad.clone(), strided(3, 24).zero_()
        ops.bias_relu(y, bias, relu)
        ops.bias_relu_backward(back, y if relu else None, out if biased else None)
        found.append((y, back, out))
    for ours, theirs in zip(found[1], found[0], strict=True):
        close(ours, theirs)


def test_the_slope_of_the_loss_leaves_out_what_fills_a_batch():
    logits, labels, index = random(3, 40, 1, 1, 16), whole(50, below=10), whole(3, 40, below=50)
    count = torch.tensor([40, 7, 0], device=DEVICE)
    found = TritonOps().loss_gradient(logits, labels, index, count, 10)
    close(found, TorchOps().loss_gradient(logits, labels, index, count, 10))
    assert not found[1, 7:].any() and not found[2].any() and not found[..., 10:].any()


def test_adam_steps_alike_and_rows_without_samples_rest():
    start = [random(3, 2112, seed=n) for n in range(4)]
    start[2].abs_()
    done, count = torch.tensor([4], device=DEVICE), torch.tensor([3, 0, 2], device=DEVICE)
    ours, theirs = ([each.clone() for each in start] for _ in range(2))
    low = torch.zeros(3, 2112, dtype=torch.bfloat16, device=DEVICE)
    TorchOps().adam(*theirs[:3], done, theirs[3], count, 1e-3, None)
    TritonOps().adam(*ours[:3], done, ours[3], count, 1e-3, low)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other, 1e-6)
    assert torch.equal(ours[0][1], start[0][1]) and not torch.equal(ours[0][0], start[0][0])
    close(low[[0, 2]], ours[0][[0, 2]], 1e-2)
