"""LeNet-5 with ReLU and max pooling: 61,706 weights for 28x28 grey images and ten classes.

LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the IEEE, 1998.
"""

from __future__ import annotations

from torch import Tensor, nn


class LeNet5(nn.Module):
    """Two convolutions, three linear layers; 84 features before the head."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2), 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n Ch H W] to logits [n classes]."""
        logits: Tensor = self.head(self.body(x))
        return logits
