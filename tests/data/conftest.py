"""Small datasets whose every image carries its own number, so that tests can follow samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from flameche.data import Dataset


def _numbered(count: int, first: int) -> NDArray[np.uint8]:
    x = np.zeros((count, 1, 4, 4), np.uint8)
    number = np.arange(first, first + count)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = number % 256, number // 256
    return x


@pytest.fixture
def numbered() -> Callable[..., Dataset]:
    """Return a maker of datasets with so many training and test samples of each class."""

    def make(classes: int = 10, per_class: int = 40, test_per_class: int = 8, name: str = "toy") -> Dataset:
        train_y = np.tile(np.arange(classes), per_class)
        test_y = np.tile(np.arange(classes), test_per_class)
        train_x, test_x = _numbered(len(train_y), 0), _numbered(len(test_y), 10_000)
        return Dataset(name, classes, train_x, train_y, test_x, test_y)

    return make


@pytest.fixture
def numbers() -> Callable[[NDArray[np.uint8]], list[int]]:
    """Return the reader of the numbers in images made by `numbered`."""
    return lambda x: (x[:, 0, 0, 0].astype(int) + 256 * x[:, 0, 0, 1].astype(int)).tolist()
