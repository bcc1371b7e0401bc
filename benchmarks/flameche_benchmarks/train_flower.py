"""Flower's Ray simulation in `bench train`; each client trains with the plain loop on one core."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from flameche.training.device import prepare_torch, usable_cores
from flameche_benchmarks.machine import cpu_seconds, process_tree
from flameche_benchmarks.train_worker import build_trainer

_made: dict[str, Any] = {}  # an actor's own trainer: what a client needs is built once in a process


def train(message: Message, context: Context) -> Message:
    """Train one client; runs in one of Ray's processes."""
    case = json.loads(os.environ["FLAMECHE_BENCH_CASE"])
    if not _made:
        prepare_torch("cpu", 1)
        _made["trainer"] = build_trainer("loop", {**case, "shape": tuple(case["shape"])})
    trainer, one = _made["trainer"], np.zeros(1, np.int64)
    client = int(context.node_config["partition-id"])
    params, buffers = message.content.array_records["arrays"].to_numpy_ndarrays()
    start = trainer.initial().from_arrays({"params": params[None], "buffers": buffers[None]})
    trained = trainer.train(start, one, one + client, message.content["config"]["server-round"])
    arrays = trained.to_arrays()
    record = ArrayRecord([arrays["params"][0], arrays["buffers"][0]])
    answer: dict[str, Any] = {"arrays": record, "metrics": MetricRecord({"num-examples": case["samples"]})}
    return Message(RecordDict(answer), reply_to=message)


def main() -> None:
    """Run the case given second; print its rounds' seconds as JSON."""
    case = json.loads(sys.argv[2])
    os.environ["FLAMECHE_BENCH_CASE"] = sys.argv[2]
    client_app, server_app = ClientApp(), ServerApp()
    client_app.train()(train)
    ends: list[tuple[float, float]] = []

    def after(_round: int, _arrays: ArrayRecord) -> None:
        ends.append((time.perf_counter(), cpu_seconds(process_tree(os.getpid()))))

    def serve(grid: Grid, _context: Context) -> None:
        arrays = build_trainer("loop", {**case, "shape": tuple(case["shape"])}, 1).initial().to_arrays()
        start = ArrayRecord([arrays["params"][0], arrays["buffers"][0]])
        FedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds=number_of_rounds(case), evaluate_fn=after)

    server_app.main()(serve)
    cores = usable_cores()
    run_simulation(
        server_app,
        client_app,
        case["clients"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "include_dashboard": False},
        },
    )
    spans = list(itertools.pairwise(ends))
    seconds, cpu = ([end[i] - start[i] for start, end in spans] for i in (0, 1))
    print(json.dumps({"seconds": seconds, "cpu": cpu, "cuda_mb": 0.0}))


def number_of_rounds(case: dict[str, Any]) -> int:
    """Choose the number of rounds in advance, since Flower has no time limit."""
    return int(min(case["rounds"], 4 if case["model"] == "lenet5" else 2))


if __name__ == "__main__":
    main()
