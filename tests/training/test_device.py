import pytest
import torch

from flameche.errors import ConfigError
from flameche.training import device
from flameche.training.device import choose_device, device_name, prepare_torch, usable_cores


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
    torch.set_num_threads(2)
    try:
        prepare_torch("cpu", threads=1)
        assert torch.get_num_threads() == 1 and device_name("cpu") == "cpu, 1 thread"
    finally:
        torch.set_num_threads(before)


def test_there_are_never_more_threads_than_cores(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(device, "usable_cores", lambda: 2)
    try:
        prepare_torch("cpu", threads=16)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1)])
def test_a_containers_share_of_the_machine_is_what_counts(monkeypatch, tmp_path, quota, cores):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(device, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores() == cores
