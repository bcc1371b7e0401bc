import pytest
import torch

from flameche.errors import ConfigError
from flameche.training.device import choose_device, device_name, prepare_torch


def test_auto_is_what_is_there():
    assert choose_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


def test_an_unknown_device_is_refused():
    with pytest.raises(ConfigError, match="expected auto, cpu or cuda"):
        choose_device("tpu")


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        choose_device("cuda")


def test_the_number_of_threads_is_the_one_asked_for():
    before = torch.get_num_threads()
    try:
        prepare_torch("cpu", threads=1)
        assert torch.get_num_threads() == 1 and device_name("cpu") == "cpu, 1 thread"
    finally:
        torch.set_num_threads(before)
