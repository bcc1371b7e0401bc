"""Processes that train together: the same bits as one alone, and no trace of them when they are gone."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flameche.data.federation import Samples
from flameche.errors import TrainingError
from flameche.training import pool, worker_pool
from flameche.training.fast_layers import FastLoopTrainer
from flameche.training.pool import PoolTrainer
from flameche.training.shared_memory import SharedArrays
from flameche.training.trainer import Pull, Sgd, TrainingPlan
from tests.conftest import tiny_federation


def net(width=16):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(64, width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(width, 3),
    )  # fmt: skip


def federation():
    made = tiny_federation(sizes=(30, 61, 12, 44, 25, 50), shape=(1, 8, 8))
    rng = np.random.default_rng(1)
    held = Samples(
        rng.integers(0, 256, (9, 1, 8, 8)).astype(np.uint8),
        rng.integers(0, 3, 9),
        np.array([0, 4, 4, 9, 9, 9, 9]),
    )
    return replace(made, holdout=held)


def trainers(workers=2, **plan):
    """A pool of processes and one alone, alike in everything else."""
    plan = TrainingPlan(**{"epochs": 2, "batch": 16, **plan})
    torch.manual_seed(0)
    model = net()
    state = model.state_dict()
    alone = FastLoopTrainer(model, federation(), plan, seed=7)
    other = net()
    other.load_state_dict(state)
    return PoolTrainer(other, federation(), plan, seed=7, workers=workers), alone


@pytest.fixture(autouse=True)
def _three_cores_of_one_thread(monkeypatch):
    monkeypatch.setattr(pool, "usable_cores", lambda: 3)
    monkeypatch.setattr(pool, "MIN_SHARED_S", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gone(pid, seconds=600.0):
    """Wait until there is no such process, or only its shell."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("statistics", ["mean", "local"])
def test_processes_together_give_the_bits_of_one_alone(statistics):
    many, alone = trainers(augment=True, bn_buffers=statistics, workers=3)
    try:
        assert many.start() == 3
        start, pick, clients = alone.initial(), np.array([0, 1, 0, 1, 1]), np.array([4, 1, 5, 0, 2])
        start = start.joined(alone.initial())
        start.params[1] *= 0.9
        target = Pull(alone.initial(), 0.2)
        for r, how in enumerate(
            [{}, {"pull": target}, {"sgd": Sgd(0.05)}, {"pull": target, "sgd": Sgd(0.05, 0.5)}]
        ):
            together, single = (t.train(start, pick, clients, r, **how) for t in (many, alone))
            assert torch.equal(together.params, single.params)
            assert torch.equal(together.buffers, single.buffers)
            for part in ("train", "held", "test"):
                found = [t.judge(single, np.arange(5), clients, part) for t in (many, alone)]
                assert np.array_equal(*found, equal_nan=True)
            assert np.array_equal(*(t.accuracy(single, np.arange(6) % 5) for t in (many, alone)))
        assert all(np.array_equal(many.state()[key], kept) for key, kept in alone.state().items())
    finally:
        many.close()


def test_local_statistics_survive_a_restart_before_and_after_processes_start():
    many, alone = trainers(bn_buffers="local")
    clients, zeros = np.arange(6), np.zeros(6, np.int64)
    start = alone.initial()
    alone.train(start, zeros, clients, 1)
    kept = {key: value.copy() for key, value in alone.state().items()}
    expected = alone.train(start, zeros, clients, 2)
    try:
        many.restore(kept)
        many.start()
        assert torch.equal(many.train(start, zeros, clients, 2).buffers, expected.buffers)
        many.restore(kept)  # where the processes see it
        assert torch.equal(many.train(start, zeros, clients, 2).buffers, expected.buffers)
        assert np.array_equal(many.state()["local_buffers"], alone.state()["local_buffers"])
    finally:
        many.close()
    assert torch.equal(
        many.train(start, zeros, clients, 3).params, alone.train(start, zeros, clients, 3).params
    )


def test_small_work_stays_in_this_process():
    many, alone = trainers()
    zeros, clients = np.zeros(6, np.int64), np.arange(6)
    for r in range(3):
        found = [t.train(t.initial(), zeros, clients, r).params for t in (many, alone)]
        assert torch.equal(*found)
    assert many._worker_pool is None
    one, _ = trainers(workers=1)
    assert one.start() == 1 and one._worker_pool is None


def test_processes_join_in_the_middle_of_a_round(monkeypatch):
    many, alone = trainers()
    many._start_after = 0.0
    joined = []
    offer = worker_pool.WorkerPool.assign

    def slowly(self, task, jobs):
        self.wait_until_ready(60)
        offer(self, task, jobs)
        joined.append([worker.state for worker in self._workers])

    monkeypatch.setattr(worker_pool.WorkerPool, "assign", slowly)
    zeros, clients = np.zeros(6, np.int64), np.arange(6)
    try:
        found = [t.train(t.initial(), zeros, clients, 1) for t in (many, alone)]
        assert torch.equal(found[0].params, found[1].params) and ["busy"] in joined
    finally:
        many.close()


def test_a_process_that_dies_gives_one_line_and_no_hang():
    many, _ = trainers(epochs=300)
    zeros, clients = np.zeros(6, np.int64), np.arange(6)
    try:
        many.start()
        (pid,) = many._worker_pool.pids
        killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(TrainingError, match=r"ended unexpectedly \(signal 9\); run again") as caught:
            many.train(many.initial(), zeros, clients, 1)
        assert "\n" not in str(caught.value) and gone(pid)
    finally:
        many.close()


def test_a_model_that_cannot_be_sent_is_trained_here():
    model = net()
    model.add_module("own", nn.Identity())
    model.own.forward = lambda x: x
    many = PoolTrainer(model, federation(), TrainingPlan(epochs=1, batch=16), 7, workers=2)
    with pytest.warns(UserWarning, match="cannot be pickled"):
        assert many.start() == 1
    many.train(many.initial(), np.zeros(6, np.int64), np.arange(6), 1)


@pytest.mark.parametrize(("python", "why"), [("/bin/false", "exit code 1"), ("/nowhere/python", ".*No such")])
def test_a_process_that_cannot_start_is_done_without(monkeypatch, python, why):
    monkeypatch.setattr(worker_pool.sys, "executable", python)
    many, alone = trainers()
    with pytest.warns(UserWarning, match=rf"could not start \({why}"):
        assert many.start() == 1
    zeros, clients = np.zeros(6, np.int64), np.arange(6)
    found = [t.train(t.initial(), zeros, clients, 1).params for t in (many, alone)]
    assert torch.equal(*found)
    many.close()


def test_bits_do_not_depend_on_torchs_number_of_threads():
    many, alone = trainers()
    zeros, clients = np.zeros(6, np.int64), np.arange(6)
    single = alone.train(alone.initial(), zeros, clients, 1)
    torch.set_num_threads(2)
    assert torch.equal(many.train(many.initial(), zeros, clients, 1).params, single.params)
    assert torch.get_num_threads() == 2


SCRIPT = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where started in the background
    import sys
    import numpy as np
    from flameche.training import pool
    from flameche.training.trainer import TrainingPlan
    from tests.training.test_pool import federation, net
    pool.usable_cores = lambda: 2
    many = pool.PoolTrainer(net(), federation(), TrainingPlan(epochs=100000, batch=16), 7, workers=2)
    many.start()
    print(*many._worker_pool.pids, flush=True)
    many.train(many.initial(), np.zeros(6, np.int64), np.arange(6), 1)
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(end):
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        pids = [int(pid) for pid in run.stdout.readline().split()]
        time.sleep(0.3)
        run.send_signal(end)
        assert run.wait(600) != 0
    finally:  # a failure must not wait for a run that never ends
        run.kill()
        run.communicate()
    assert len(pids) == 1 and all(gone(pid) for pid in pids)


def test_a_pool_that_is_forgotten_ends_its_processes():
    many, _ = trainers()
    many.start()
    (pid,) = many._worker_pool.pids
    del many
    assert gone(pid)


def test_shared_memory_holds_arrays_of_any_shape():
    arrays = {"a": np.arange(5, dtype=np.int64), "none": np.empty((3, 0), np.float32), "b": np.ones((2, 3))}
    shared = SharedArrays.from_arrays(arrays, [("extra", "<f4", (4, 2))])
    again = SharedArrays(os.dup(shared.fd), shared.spec)
    shared.arrays["extra"][1] = 7
    assert all(np.array_equal(again.arrays[name], array) for name, array in arrays.items())
    assert again.arrays["extra"].sum() == 14 and again.arrays["none"].shape == (3, 0)
    shared.close()
    again.close()
