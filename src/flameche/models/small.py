"""A small convolutional network for small images, such as the 8x8 digits: 32 features before the head."""

from __future__ import annotations

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Two 3x3 convolutions, two linear layers; images from 4x4 up."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 32), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n Ch H W] to logits [n classes]."""
        logits: Tensor = self.head(self.body(x))
        return logits
