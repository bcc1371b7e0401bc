"""Chooses the primitives that stacked layers run on: plain torch, or Triton's where there is a GPU."""

from __future__ import annotations

import torch

from flameche.training.primitives import Plain


def primitives(device: str, dtype: torch.dtype) -> Plain:
    """Take Triton's on CUDA, in the precisions they are written for; else plain torch."""
    if device == "cuda" and dtype != torch.float64:
        try:
            from flameche.training.triton_primitives import Fast
        except ImportError:
            return Plain()
        return Fast()
    return Plain()
