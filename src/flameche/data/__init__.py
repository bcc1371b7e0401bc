"""Datasets, the ways in which clients differ, and the federations built from them."""

from flameche.data.datasets import Dataset, DatasetInfo, available, data_folder, load_dataset, load_npz
from flameche.data.federation import Federation, Samples, build_federation
from flameche.data.heterogeneity import Transform, parse_transform

__all__ = [
    "Dataset",
    "DatasetInfo",
    "Federation",
    "Samples",
    "Transform",
    "available",
    "build_federation",
    "data_folder",
    "load_dataset",
    "load_npz",
    "parse_transform",
]
