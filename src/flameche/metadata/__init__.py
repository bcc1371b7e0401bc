"""What a client tells of its data: one small vector, computed once."""

from flameche.metadata.extractors import Metadata

__all__ = ["Metadata"]
