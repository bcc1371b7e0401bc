"""Networks, for training and for metadata."""

from flameche.models.build import build_model
from flameche.models.features import FeatureExtractor

__all__ = ["FeatureExtractor", "build_model"]
