"""Translates a module into stacked layers, if they cover all of its operations.

The operations are found by torch.fx. An operation without a stacked layer raises `UnsupportedModel`, and the
caller uses torch.vmap or the plain loop instead. Every translation is checked against the module's own
gradients (`matches_module`).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from flameche.training.kernels.autodiff import Layer, Pass, Step, backward, forward
from flameche.training.kernels.conv_geometry import ConvPool, MapShape, Window, round_up
from flameche.training.kernels.layers import (
    Activation,
    Add,
    BatchNorm,
    ImplicitConv,
    MatMul,
    MaxPool,
    MeanPool,
)
from flameche.training.kernels.torch_ops import TorchOps
from flameche.training.kernels.weight_layout import (
    ImplicitConvs,
    LayerBuilder,
    UnsupportedModel,
    WeightLayout,
)
from flameche.training.models import read_module, write_module

ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (torch.relu, lambda x, y: y > 0),
    "tanh": (torch.tanh, lambda x, y: 1 - y * y),
    "sigmoid": (torch.sigmoid, lambda x, y: y * (1 - y)),
    "silu": (F.silu, lambda x, y: torch.sigmoid(x) * (1 + x - y)),
    "leaky_relu": (F.leaky_relu, lambda x, y: torch.where(x > 0, 1.0, 0.01)),
    "softplus": (F.softplus, lambda x, y: torch.sigmoid(x)),
}
ACTIVATION_NAMES: dict[Any, str] = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu", nn.LeakyReLU: "leaky_relu",
    nn.Softplus: "softplus", F.relu: "relu", torch.relu: "relu", torch.relu_: "relu", torch.tanh: "tanh",
    torch.sigmoid: "sigmoid", F.silu: "silu", F.leaky_relu: "leaky_relu", F.softplus: "softplus",
    F.tanh: "tanh", F.sigmoid: "sigmoid", "relu": "relu", "relu_": "relu", "tanh": "tanh",
    "sigmoid": "sigmoid",
}  # fmt: skip
SHAPE_ONLY = (nn.Identity, nn.Flatten)
RESHAPES = ("flatten", "view", "reshape", "contiguous", "squeeze")
ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
MEANS = (torch.mean, "mean")
POOLS: dict[str, type[nn.Module]] = {
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d, "avg_pool2d": nn.AvgPool2d, "max_pool2d": nn.MaxPool2d,
    "boolean_dispatch": nn.MaxPool2d, "_max_pool2d": nn.MaxPool2d,
}  # fmt: skip
MAX_FUSED_OUTPUTS = 128  # over all positions of a pooling window: what one program sums


def as_pair(value: Any) -> tuple[int, int]:
    """Return a size given as one number or two as a pair."""
    one = (value, value) if isinstance(value, int) else tuple(value)
    if len(one) != 2 or not all(isinstance(n, int) for n in one):
        raise UnsupportedModel(f"a size of {value}")
    return int(one[0]), int(one[1])


class _ShapeRecorder(fx.Interpreter):
    """Runs a traced module once to record the shape of each value."""

    def found(self, images: torch.Tensor) -> dict[fx.Node, tuple[int, ...]]:
        """Return the shapes of all tensors."""
        self._found: dict[fx.Node, tuple[int, ...]] = {}
        with torch.no_grad():
            self.run(images)
        return self._found

    def run_node(self, n: fx.Node) -> Any:
        """Record a node's shape."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self._found[n] = tuple(value.shape)
        return value


class Translator:
    """Translates the nodes of one traced module into steps."""

    def __init__(
        self,
        module: nn.Module,
        shape: tuple[int, int, int],
        align: int,
        drop_unused: bool,
        implicit_convs: ImplicitConvs,
        trained: int = 0,
    ) -> None:
        own = copy.deepcopy(module).cpu().float().eval()
        try:
            self.traced = fx.symbolic_trace(own)
            self.shapes = _ShapeRecorder(self.traced).found(torch.zeros(2, *shape))
        except Exception as problem:  # a user's model can raise anything
            raise UnsupportedModel(f"torch.fx: {problem}") from problem
        self.modules = dict(self.traced.named_modules())
        self.builder = LayerBuilder(module, align, drop_unused, implicit_convs, trained)
        channels, height, width = shape
        self.map_shapes = [MapShape(height, width, channels, round_up(channels, align))]
        self.steps: list[Step] = []
        self.values: dict[fx.Node, int] = {}
        self.used: set[str] = set()
        for node in self.traced.graph.nodes:
            self._node(node)

    def _node(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.values:
                raise UnsupportedModel("a network of several inputs")
            self.values[node] = 0
        elif node.op == "output":
            if (
                not isinstance(node.args[0], fx.Node)
                or self._value_of(node.args[0]) != len(self.map_shapes) - 1
            ):
                raise UnsupportedModel("an output that is not the last value")
        elif node.op == "call_module":
            self._module(node, self.modules[str(node.target)])
        elif node.op in ("call_function", "call_method"):
            self._call(node)
        else:
            raise UnsupportedModel(f"{node.op} of {node.target}")

    def _value_of(self, argument: Any) -> int:
        if not isinstance(argument, fx.Node) or argument not in self.values:
            raise UnsupportedModel(f"an argument {argument}")
        return self.values[argument]

    def _add_step(self, node: fx.Node, layer: Any, *inputs: int) -> None:
        self.map_shapes.append(layer.map_shape)
        self.values[node] = len(self.map_shapes) - 1
        self.steps.append(Step(layer, inputs, self.values[node]))

    def _module(self, node: fx.Node, layer: nn.Module) -> None:
        name, at = str(node.target), self._value_of(node.args[0])
        if len(node.args) != 1 or node.kwargs:
            raise UnsupportedModel(f"{name} called with several arguments")
        if any(True for _ in layer.parameters()):
            if name in self.used:
                raise UnsupportedModel(f"{name} used twice")
            self.used.add(name)
        map_shape = self.map_shapes[at]
        if isinstance(layer, SHAPE_ONLY):
            self._alias(node, at)
        elif type(layer) in ACTIVATION_NAMES:
            self._activation(node, ACTIVATION_NAMES[type(layer)], at, layer)
        elif isinstance(layer, nn.Conv2d):
            self._add_step(node, self.builder.conv(name, layer, map_shape, reads_images=at == 0), at)
        elif isinstance(layer, nn.Linear):
            if len(self.shapes[node]) != 2:
                raise UnsupportedModel(f"{name} over more than features")
            self._add_step(node, self.builder.linear(name, layer, map_shape, reads_images=at == 0), at)
        elif isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
            if isinstance(layer, nn.BatchNorm1d) and map_shape.pixels > 1:
                raise UnsupportedModel(f"{name} over a flattened map")
            self._add_step(node, self.builder.norm(name, layer, map_shape), at)
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d):
            self._pool(node, layer, at)
        else:
            raise UnsupportedModel(f"{name}, a {type(layer).__name__}")

    def _alias(self, node: fx.Node, at: int) -> None:
        """Translate a reshape that keeps images apart and the order of their values."""
        shape, map_shape = self.shapes[node], self.map_shapes[at]
        whole = (2, map_shape.channels * map_shape.pixels)
        if shape not in (whole, (2, map_shape.channels, map_shape.height, map_shape.width)):
            raise UnsupportedModel(f"a value of shape {shape}")
        self.values[node] = at

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if node not in self.shapes:  # x.size(0) and the like, used by a reshape that is checked
            return
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if target in ADDS:
            if len(node.args) != 2 or node.kwargs:
                raise UnsupportedModel("a scaled sum")
            a, b = (self._value_of(each) for each in node.args)
            if self.map_shapes[a] != self.map_shapes[b] or a == b:
                raise UnsupportedModel("a sum of unlike values")
            self._add_step(node, Add(self.map_shapes[a]), a, b)
        elif target in ACTIVATION_NAMES:
            if len(node.args) != 1 or set(node.kwargs) - {"inplace"}:
                raise UnsupportedModel(f"{name} with arguments")
            self._activation(node, ACTIVATION_NAMES[target], self._value_of(node.args[0]), None)
        elif name in RESHAPES:
            self._alias(node, self._value_of(node.args[0]))
        elif target in MEANS:
            self._mean(node)
        elif name in POOLS:
            layer: Any = POOLS[name]
            self._pool(node, layer(*node.args[1:], **node.kwargs), self._value_of(node.args[0]))
        else:
            raise UnsupportedModel(f"a call of {name or target}")

    def _activation(self, node: fx.Node, name: str, at: int, layer: Any) -> None:
        if (name == "leaky_relu" and layer is not None and layer.negative_slope != 0.01) or (
            name == "softplus" and layer is not None and (layer.beta, layer.threshold) != (1, 20)
        ):
            raise UnsupportedModel(f"{name} with arguments")
        self._add_step(node, Activation(self.map_shapes[at], *ACTIVATIONS[name]), at)

    def _mean(self, node: fx.Node) -> None:
        at = self._value_of(node.args[0])
        map_shape, axes = (
            self.map_shapes[at],
            node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None),
        )
        if not isinstance(axes, tuple | list) or sorted(a % 4 for a in axes) != [2, 3]:
            raise UnsupportedModel("a mean over other than the map")
        size = (map_shape.height, map_shape.width)
        out = MapShape(1, 1, map_shape.channels, map_shape.pitch)
        self._add_step(node, MeanPool(out, Window(map_shape, size, size, (0, 0))), at)

    def _pool(self, node: fx.Node, layer: Any, at: int) -> None:
        map_shape = self.map_shapes[at]
        if isinstance(layer, nn.AdaptiveAvgPool2d):
            height, width = as_pair(layer.output_size)
            if map_shape.height % height or map_shape.width % width:
                raise UnsupportedModel("adaptive pooling by unequal windows")
            kernel = stride = (map_shape.height // height, map_shape.width // width)
            padding = (0, 0)
        else:
            kernel, stride, padding = (
                as_pair(layer.kernel_size),
                as_pair(layer.stride),
                as_pair(layer.padding),
            )
            if layer.ceil_mode or getattr(layer, "dilation", 1) not in (1, (1, 1)):
                raise UnsupportedModel("pooling with ceil_mode or dilation")
        window = Window(map_shape, kernel, stride, padding)
        out = MapShape(*window.out, map_shape.channels, map_shape.pitch)
        if isinstance(layer, nn.MaxPool2d):
            if layer.return_indices:
                raise UnsupportedModel("pooling that returns indices")
            self._add_step(node, MaxPool(out, window), at)
            return
        if kernel != stride or padding != (0, 0) or getattr(layer, "divisor_override", None):
            raise UnsupportedModel("average pooling by windows that overlap or are padded")
        self._add_step(node, MeanPool(out, window), at)


def fuse_steps(steps: list[Step]) -> list[Step]:
    """Fuse a residual into its BatchNorm, ReLU into its neighbour, pooling into its convolution."""
    for n, step in enumerate(steps):
        if isinstance(step.layer, Add):
            for mine, other in (step.inputs, step.inputs[::-1]):
                source = _producer(steps[:n], mine)
                if (
                    source is not None
                    and isinstance(source.layer, BatchNorm)
                    and _consumer_count(steps, mine) == 1
                ):
                    joined = Step(source.layer, (source.inputs[0], other), step.output)
                    return fuse_steps([s for s in steps[:n] if s is not source] + [joined] + steps[n + 1 :])
        if isinstance(step.layer, MaxPool) and _consumer_count(steps, step.inputs[0]) == 1:
            source = _producer(steps[:n], step.inputs[0])
            pooled = _with_pooling(source.layer, step.layer) if source is not None else None
            if source is not None and pooled is not None:
                joined = Step(pooled, source.inputs, step.output)
                return fuse_steps([joined if s is source else s for s in steps if s is not step])
        if isinstance(step.layer, Activation) and step.layer.function is torch.relu:
            mine = step.inputs[0]
            after = [s for s in steps if step.output in s.inputs]
            if len(after) == 1 and isinstance(after[0].layer, MaxPool) and not after[0].layer.relu:
                later = replace(after[0], layer=replace(after[0].layer, relu=True), inputs=(mine,))
                return fuse_steps([later if s is after[0] else s for s in steps if s is not step])
            source = _producer(steps[:n], mine)
            if (
                source is not None
                and isinstance(source.layer, BatchNorm | MatMul | ImplicitConv)
                and _consumer_count(steps, mine) == 1
                and not source.layer.relu
            ):
                joined = Step(replace(source.layer, relu=True), source.inputs, step.output)
                return fuse_steps([joined if s is source else s for s in steps if s is not step])
    return steps


def _with_pooling(made: Layer, pool: MaxPool) -> ImplicitConv | None:
    """Fuse pooling into a convolution, if its windows tile the map and have side 2 or 4."""
    if not isinstance(made, ImplicitConv) or made.geometry.pool > 1 or made.relu:
        return None
    window, side = pool.window, pool.window.kernel[0]
    tiles = window.kernel == window.stride == (side, side) and window.padding == (0, 0)
    if not tiles or side not in (2, 4) or made.map_shape.pitch * window.taps > MAX_FUSED_OUTPUTS:
        return None
    return replace(
        made, map_shape=pool.map_shape, geometry=ConvPool(made.geometry.window, side), relu=pool.relu
    )


def _producer(steps: list[Step], value: int) -> Step | None:
    return next((s for s in steps if s.output == value), None)


def _consumer_count(steps: list[Step], value: int) -> int:
    return sum(s.inputs.count(value) for s in steps)


Shape = tuple[int, int, int]


@dataclass(frozen=True)
class StackedNetwork:
    """A translated module: its steps, the layout of weights and statistics, its gradient."""

    steps: list[Step]
    weights: WeightLayout
    stats: WeightLayout
    images: MapShape
    classes: int

    @property
    def reads_bytes(self) -> bool:
        """Tell whether the first layers read bytes themselves, so that no image tensor is needed."""
        firsts = [step.layer for step in self.steps if 0 in step.inputs]
        return all(
            isinstance(layer, ImplicitConv) or (isinstance(layer, MatMul) and layer.lowering == "im2col")
            for layer in firsts
        )

    def numbers_per_image(self, plain: bool = True) -> int:
        """Estimate the numbers held per image in a training step: values, gradients, im2col.

        plain: all convolutions use im2col, as plain torch does.
        """
        total = self.images.numel
        for step in self.steps:
            layer, out = step.layer, step.layer.map_shape.numel
            total += 3 * out  # a value, its gradient and a temporary
            if isinstance(layer, MatMul) and layer.lowering == "im2col":
                total += layer.map_shape.pixels * layer.columns * (1 if layer.reads_images else 2)
            if isinstance(layer, ImplicitConv) and plain:
                height, width = layer.geometry.window.out
                total += (
                    height
                    * width
                    * (layer.columns * (1 if layer.reads_images else 2) + 3 * layer.map_shape.pitch)
                )
        return total

    def logits(self, ctx: Pass, data: Tensor, index: Tensor) -> Tensor:
        """Map samples index [M b] of data, bytes [n H W Ch], to logits [M b classes]."""
        return self.values(ctx, data, index)[:, :, 0, 0, : self.classes]

    def values(self, ctx: Pass, data: Tensor, index: Tensor) -> Tensor:
        """Return the logits as a map [M b 1 1 pitch]."""
        ctx.data = (data, index)
        images = None
        if not self.reads_bytes:
            images = ctx.ops.load_images(data, index, self.images.pitch, ctx.weights.dtype)
        return forward(self.steps, ctx, images)

    def gradient(self, ctx: Pass, data: Tensor, labels: Tensor, index: Tensor) -> None:
        """Write the gradient of every client's mean loss over its real samples to ctx.grads."""
        assert ctx.count is not None
        logits = self.values(ctx, data, index)
        backward(self.steps, ctx, ctx.ops.loss_gradient(logits, labels, index, ctx.count, self.classes))


def translate(
    module: nn.Module,
    shape: Shape,
    align: int = 1,
    drop_unused: bool = True,
    implicit_convs: ImplicitConvs = "small",
) -> StackedNetwork:
    """Translate a module, or raise `UnsupportedModel`.

    Args:
        module: the model.
        shape: of an image, [Ch H W].
        align: channels are padded to a multiple of this.
        drop_unused: leave out weights that never affect the output.
        implicit_convs: which convolutions run without im2col.
    """
    found = Translator(module, shape, align, drop_unused, implicit_convs)
    if found.builder.weights.total > found.builder.weights.trained:  # now the offset of frozen ones is known
        found = Translator(module, shape, align, drop_unused, implicit_convs, found.builder.weights.trained)
    last = found.map_shapes[-1]
    if last.pixels != 1 or not found.steps:
        raise UnsupportedModel("an output that is a map")
    return StackedNetwork(
        fuse_steps(found.steps),
        found.builder.weights,
        found.builder.stats,
        found.map_shapes[0],
        last.channels,
    )


def stack_network(
    module: nn.Module,
    shape: Shape,
    align: int = 1,
    drop_unused: bool = True,
    device: str = "cpu",
    implicit_convs: ImplicitConvs = "small",
) -> StackedNetwork | None:
    """Translate a module if possible and correct, tried on the device; else return None."""
    try:
        network = translate(module, shape, align, drop_unused, implicit_convs)
        return (
            network
            if matches_module(network, copy.deepcopy(module).to(device).double().train(), shape)
            else None
        )
    except Exception:  # a user's model can raise anything
        return None


def matches_module(network: StackedNetwork, module: nn.Module, shape: Shape) -> bool:
    """Tell whether two models on padded batches have the gradients and statistics of the module itself."""
    generator = torch.Generator().manual_seed(0)
    params, buffers = read_module(module)
    device = params.device
    data = torch.randint(0, 256, (8, *shape), generator=generator, dtype=torch.uint8).to(device)
    labels = torch.randint(0, network.classes, (8,), generator=generator).to(device)
    rows, stats = torch.stack([params, params * 0.9]), torch.stack([buffers, buffers])
    packed = [rows.new_zeros(2, each.total) for each in (network.weights, network.stats)]
    network.weights.pack(rows, packed[0])
    network.stats.pack(stats, packed[1])
    index = torch.tensor([[0, 1, 2, 0], [4, 5, 6, 7]], device=device)
    count = torch.tensor([3, 4], device=device)
    grads = rows.new_zeros(2, network.weights.trained)
    ctx = Pass(TorchOps(), packed[0], packed[0], packed[1], count, grads)
    network.gradient(ctx, data.permute(0, 2, 3, 1).contiguous(), labels, index)
    after, found = stats.clone(), torch.zeros_like(rows)
    network.stats.unpack(packed[1], after)
    wide = torch.zeros_like(packed[0])
    wide[:, : network.weights.trained] = grads
    network.weights.unpack(wide, found)
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
