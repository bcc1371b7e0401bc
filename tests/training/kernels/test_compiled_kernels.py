"""The matrix products of the Triton kernels, as compiled for an H100 or H200; needs no GPU."""

import os
import re

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs Triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="needs Triton without TRITON_INTERPRET"
)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from flameche.training.kernels import triton_conv  # noqa: E402
from flameche.training.kernels.conv_geometry import ConvPool, MapShape, Window  # noqa: E402
from flameche.training.kernels.torch_ops import SavedConv  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int64: "*i64"}
PRODUCTS = ("conv_pool_kernel", "conv_weight_gradient_kernel", "conv_input_gradient_kernel")
SLIDES = [  # map, window, padding, outputs, pooling, bytes
    ((28, 28, 1), (5, 5), (2, 2), 8, 2, True),  # LeNet-5's
    ((14, 14, 8), (5, 5), (0, 0), 16, 2, False),
    ((14, 14, 8), (3, 3), (1, 1), 16, 1, False),
]


class Noted:
    """Stands where a kernel stands, and notes what it is launched with."""

    def __init__(self, kernel, found):
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid):
        return lambda *given, **named: self.found.append((self.kernel, given, named))


def launches(monkeypatch, shape, kernel, padding, outputs, pool, images, dtype):
    """Give the launches of the products of a convolution and its way back."""
    found = []
    for name in (*PRODUCTS, "expand_weights_kernel", "sum_weight_gradient_kernel"):
        monkeypatch.setattr(triton_conv.kernels, name, Noted(getattr(triton_conv.kernels, name), found))
    geometry = ConvPool(Window(MapShape(*shape, shape[2]), kernel, (1, 1), padding), pool)
    weights = torch.zeros(2, kernel[0] * kernel[1] * shape[2] + 1, outputs, dtype=dtype)
    source = torch.zeros(2, 8, *shape, dtype=dtype)
    if images:
        source = (torch.zeros(9, *shape, dtype=torch.uint8), torch.zeros(2, 8, dtype=torch.int64))
    conv_kernels = triton_conv.ConvKernels()
    saved = conv_kernels.forward(source, weights, geometry, True, True, True)
    for masked in (True, False):
        kept = saved if masked else SavedConv(source, saved.y, None, wide=saved.wide)
        conv_kernels.weight_gradient(saved.y, kept, geometry, masked, True, weights.clone())
        if not images:
            conv_kernels.input_gradient(saved.y, kept, geometry, masked, None)
    monkeypatch.undo()
    return [each for each in found if each[0].__name__ in PRODUCTS]


def compiled(kernel, given, named):
    """Compile a launch as it would be on a GPU; give it in the compiler's own language."""
    options = {key: named.pop(key) for key in ("num_warps", "num_stages")}
    values = dict(zip(kernel.arg_names, given, strict=False))
    kinds = {key: TYPES[v.dtype] if isinstance(v, torch.Tensor) else "i32" for key, v in values.items()}
    kinds |= dict.fromkeys(named, "constexpr")
    whole = [n for n, key in enumerate(kernel.arg_names) if kinds[key].startswith("*") or key == "stride"]
    aligned = {(n,): [["tt.divisibility", 16]] for n in whole}
    source = ASTSource(kernel, {key: kinds[key] for key in kernel.arg_names}, named, aligned)
    return triton.compile(source, target=HOPPER, options=options).asm["ttgir"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", SLIDES)
def test_no_product_runs_on_whose_left_side_lies_in_registers(case, dtype, monkeypatch):
    # Its registers would be overwritten by the next turn: wrong numbers or NaN on a busy GPU.
    monkeypatch.setattr(triton_conv, "_rounding", lambda: "tf32")
    found = launches(monkeypatch, *case, dtype)
    assert len(found) == (3 if case[-1] else 5)
    for kernel, given, named in found:
        for loop in re.findall(r"scf\.for.*?scf\.yield", compiled(kernel, given, named), re.DOTALL):
            if re.search(r"warp_group_dot [^\n]* : tensor<", loop):
                assert set(re.findall(r"pendings = (\d+)", loop)) == {"0"}, kernel.__name__
