"""Makes results/flower-scale.md: seconds of a round between n real nodes, beside empty exchanges of the same.

    python reproduction/studies/flower_scale.py run [--nodes 5 10 25 50] [--rounds 5] [--cold]
    python reproduction/studies/flower_scale.py table

`run` starts a SuperLink and n nodes on this machine, lets them answer empty messages, then plays FLAMECHE on
the embedded digits under BFV, and appends a line to results/flower-scale.jsonl. --cold: as Flower starts
them, a new Python for every message and three seconds between looks for messages.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flameche.crypto.keyfile import PUBLIC
from flameche.experiments.config import config_hash, load_experiment
from flameche.experiments.provenance import provenance
from flameche.experiments.run_folder import run_path
from flameche.flower import process_reaper
from flameche.flower.app_template import write_digits_app
from flameche.flower.deployment import LOG_PREFIX, LocalNetwork, make_keys
from flameche_benchmarks.machine import cpu_seconds, memory_used
from flameche_reproduction.results_index import ResultsFile

RESULTS = Path(__file__).parents[2] / "results"
CHANGES = ["data.groups=4", "method.clusters=4", "data.per_label=2", "training.evaluate_every=100"]
CHANGES += ["scheme.min_cluster=1", "method.mode=paper"]
SERVER = """
import logging, time
from flwr.serverapp import ServerApp
from flameche.flower.transport import GridTransport
from flameche.network.message import Message

app = ServerApp()

@app.main()
def main(grid, context):
    nodes, transport = context.run_config["nodes"], GridTransport(grid)
    while len(transport.nodes()) < nodes:
        time.sleep(0.2)
    for number in range(context.run_config["exchanges"] + 1):
        begun = time.perf_counter()
        found = transport.exchange({node: Message({"n": number}) for node in transport.nodes()}, 600)
        lost = sum(not isinstance(reply, Message) for reply in found.values())
        logging.getLogger("flwr").info(f"flameche: {number} {time.perf_counter() - begun} {lost}")
"""
CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp
from flameche.flower.transport import pack, unpack

app = ClientApp()

@app.train()
def answer(message, context):
    return Message(pack(unpack(message.content)), reply_to=message)
"""
WORDS = """\
# Rounds between real nodes

Made by `python reproduction/studies/flower_scale.py run` and `... table` from `flower-scale.jsonl`: a
SuperLink, a server and n nodes on one machine, whose few cores do all the nodes' work and perhaps others'
(*load*: how many processes wanted to run at the end), so that these are upper bounds. FLAMECHE (paper
mode) on the embedded digits, BFV, everybody takes part in every round. *empty*: a message without content
to every node and back, median of five. *exchanges*: trips to all nodes and back in each round but the
first, in which nodes also meet; *rounds*: their seconds; the last one also scores the models. *apiece*:
seconds by exchange, scoring counted as one. *CPU*: seconds of all processes for one message to one node
and back. *cold*: Flower's own programs, a new Python for each message, three seconds between looks for
messages; *warm*: as `flameche deploy` runs them.
"""


def empty_app(folder: Path, nodes: int, exchanges: int) -> Path:
    """Write an app whose nodes send back what they get: nothing."""
    app = write_digits_app(folder)
    text = (app / "pyproject.toml").read_text().replace("flameche.flower.server_app:app", "echo_server:app")
    text = text.replace("flameche.flower.client_app:app", "echo_client:app")
    (app / "pyproject.toml").write_text(f"{text}nodes = {nodes}\nexchanges = {exchanges}\n")
    (app / "echo_server.py").write_text(SERVER)
    (app / "echo_client.py").write_text(CLIENT)
    return app


class Peak(threading.Thread):
    """Records the peak memory of a network's processes."""

    def __init__(self, network: LocalNetwork) -> None:
        super().__init__(daemon=True)
        self.network, self.most, self.over = network, 0, threading.Event()

    def run(self) -> None:
        """Look every few seconds."""
        while not self.over.wait(5.0):
            self.most = max(self.most, memory_used(list(household(self.network))))


def household(network: LocalNetwork) -> set[int]:
    """List all processes of a network."""
    return process_reaper.descendants(network.processes.ids, process_reaper.process_table())


def measure(nodes: int, rounds: int, cold: bool) -> dict[str, Any]:
    """Start n nodes; time empty exchanges, then rounds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = write_digits_app(folder / "app")
        changes = [*CHANGES, f"data.clients={nodes}", f"rounds={rounds}"]
        experiment = load_experiment(app / "experiment.toml", changes)
        begun = time.perf_counter()
        with LocalNetwork(folder, nodes, forked=not cold) as network:
            keys = make_keys(experiment, folder / "keys")
            assert keys is not None
            network.start_superlink()
            for number in range(nodes):
                network.start_site(number, keys)
            watch = Peak(network)
            watch.start()
            told = {"nodes": nodes, "exchanges": 5}
            empty = [
                float(line.partition(LOG_PREFIX)[2].split()[1])
                for line in network.run(empty_app(folder / "empty", nodes, 5), told)
                if LOG_PREFIX in line
            ]
            ready = time.perf_counter() - begun - sum(empty)
            settings = {"set": " ".join(changes), "out": str(folder / "runs"), "key": str(keys / PUBLIC)}
            spent = cpu_seconds(list(household(network)))
            ends = []
            for line in network.run(app, {**settings, "patience": 600, "timeout": 600}):
                if LOG_PREFIX in line:
                    print(f"  {line.partition(LOG_PREFIX)[2]}", file=sys.stderr, flush=True)
                    if f"{LOG_PREFIX}round " in line or "rounds of" in line:
                        ends.append(time.perf_counter())
            spent = cpu_seconds(list(household(network))) - spent
            watch.over.set()
            watch.join()
        run = run_path(folder / "runs", experiment.name, config_hash(experiment), 0)
        records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        log = "".join((folder / f"site-{n}" / "node.log").read_text() for n in range(nodes))
        messages = log.count("Receiving: ") - 6 * nodes  # less the empty ones
        seconds = [b - a for a, b in itertools.pairwise(ends)]
    return {
        "nodes": nodes,
        "cold": cold,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "ready_s": ready,
        "empty_s": empty[1:],
        "round_s": seconds,
        "exchanges": [record["exchanges"] for record in records],
        "lost": sum(len(record["lost"]) for record in records),
        "messages": messages,
        "cpu_s": spent,
        "memory_gb": watch.most / 1e9,
    }


def table() -> str:
    """Put the lines into words and a table."""
    lines = [json.loads(line) for line in (RESULTS / "flower-scale.jsonl").read_text().splitlines()]
    names = ["nodes", "start", "cores", "load", "empty", "exchanges", "rounds", "apiece", "CPU", "lost", "GB"]
    text = [WORDS, f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for one in sorted(lines, key=lambda line: (line["cold"], line["nodes"])):
        trips, rounds = one["exchanges"][1:], one["round_s"][1:]
        row = [one["nodes"], "cold" if one["cold"] else "warm", one["cores"], f"{one['load']:.0f}"]
        row += [f"{statistics.median(one['empty_s']):.1f} s", " ".join(map(str, trips))]
        row += [" ".join(f"{seconds:.0f}" for seconds in rounds), f"{sum(rounds) / (sum(trips) + 1):.1f} s"]
        row += [f"{one['cpu_s'] / one['messages']:.2f} s", one["lost"], f"{one['memory_gb']:.1f}"]
        text.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 10, 25, 50])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    asked = parser.parse_args()
    if asked.what == "run":
        for nodes in asked.nodes:
            found = measure(nodes, asked.rounds, asked.cold)
            ResultsFile(RESULTS / "flower-scale.jsonl").add({**found, **provenance("cpu", ["flwr"])})
            print(json.dumps(found))
    else:
        (RESULTS / "flower-scale.md").write_text(table())


if __name__ == "__main__":
    main()
