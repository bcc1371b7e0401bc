"""ResNet-18 in torchvision's layout: 11,176,512 weights without the head, 512 features.

He et al., "Deep residual learning for image recognition", CVPR 2016. Layers have torchvision's names, so its
state dictionaries load.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

Stem = Literal["usual", "unpooled", "small"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a skip connection."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map [n Ch H W] to [n Ch' H/stride W/stride]."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        result: Tensor = self.relu(out + self.downsample(x))
        return result


class ResNet18(nn.Module):
    """A 7x7 stem, four stages of two blocks, global average pooling and a linear head.

    The usual stem reduces images of 32 pixels to maps of 8. The "unpooled" stem omits its pooling, has as
    many weights and leaves 16; the "small" stem is 3x3 without stride or pooling, leaves 32, and has 7,680
    weights fewer for three channels.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, stem: Stem = "usual") -> None:
        super().__init__()
        window = (3, 1, 1) if stem == "small" else (7, 2, 3)  # side, stride, padding
        self.conv1 = nn.Conv2d(shape[0], 64, *window, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.MaxPool2d(3, 2, 1) if stem == "usual" else nn.Identity()
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n Ch H W] to logits [n classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))  # average pooling whose gradient is deterministic on a GPU
        return logits


class SmallStem(ResNet18):
    """ResNet-18 with a 3x3 stem, without stride or pooling."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes, "small")


class UnpooledStem(ResNet18):
    """ResNet-18 without the pooling of its stem."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes, "unpooled")
