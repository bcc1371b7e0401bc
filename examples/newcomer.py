"""Writes the data of a client that comes after training, for `flameche assign` on a run of digits.toml."""

import numpy as np

from flameche.data import load_dataset, parse_transform

digits = load_dataset("digits")  # its test images, which no client of the run has
turned = parse_transform("rotate:90", classes=10, shape=(1, 8, 8))
np.savez("site.npz", x=turned.images(digits.test_x[:60]), y=digits.test_y[:60])
