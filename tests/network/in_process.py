"""A federation in one process: real nodes on disks of their own, and a transport that can be told to fail."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache

from flameche.errors import BadInput, FlamecheError
from flameche.experiments.build import build
from flameche.experiments.config import parse_experiment
from flameche.experiments.deployment import node_setup, server_setup, simulated_data
from flameche.network.coordinator import Coordinator
from flameche.network.message import Message, NoReply
from flameche.network.node import Node
from flameche.network.node_storage import NodeStorage
from flameche.simulation.engine import Unrecorded, simulate

TINY = {
    "name": "net",
    "rounds": 3,
    "participation": 0.7,
    "data": {"dataset": "digits", "clients": 6, "groups": 2, "per_label": 5, "heterogeneity": "csl"},
    "training": {"epochs": 1, "batch": 16, "trainer": "loop"},
    "method": {"kind": "flameche", "clusters": 2, "mode": "paper"},
}


def experiment(**tables):
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in TINY.items()}
    for key, value in tables.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
        if key == "method" and value.get("kind", "flameche") != "flameche":
            merged[key] = value
    return parse_experiment(merged)


def carried(message):
    """What words become on a wire; arrays stay as they are."""
    return Message(json.loads(json.dumps(message.head)), dict(message.arrays))


class InProcess:
    """Carries messages by calling; every message meets a new `Node`, as in a process of its own."""

    def __init__(self, make, numbers):
        self.make, self.numbers = make, list(numbers)
        self.online = set(self.numbers)
        self.calls = Counter()
        self.exchanges = 0
        self.seen = []
        self.sites = {}  # by what nodes call themselves; None: their settings do not say
        self.meddle = None  # (number, message, reply) -> reply or NoReply

    def nodes(self):
        return [100 + number for number in sorted(self.online)]

    def exchange(self, messages, timeout):
        found = {}
        self.exchanges += 1
        for address, message in messages.items():
            number = address - 100
            self.calls[message.head["what"]] += 1
            try:
                reply = carried(self.make(number).handle(carried(message)))
            except FlamecheError as problem:
                site = self.sites.get(number, number)
                reply = NoReply(str(problem), site if isinstance(problem, BadInput) else None)
            if self.meddle:
                reply = self.meddle(number, message, reply)
            self.seen.append((number, message, reply))
            found[address] = reply
        return found


class Memory(Unrecorded):
    """Keeps the last checkpoint."""

    def __init__(self):
        self.checkpoint, self.records = None, []

    def resume(self):
        if self.checkpoint is None:
            return None, []
        self.records = self.records[: self.checkpoint.round]
        return self.checkpoint, list(self.records)

    def add_round(self, record):
        self.records.append(record)

    def save(self, checkpoint):
        self.checkpoint = checkpoint


@cache
def own_data(data, seed, number):
    plain = experiment(data=data.model_dump(exclude_unset=True), method={"kind": "fedavg"})
    return simulated_data(plain, seed, number)


@cache
def setup_of(own, seed, number, key):
    made = node_setup(own, seed, number, lambda: own_data(own.data, seed, number), key_file=key)
    return replace(made, trainer=cache(made.trainer), metadata=cache(made.metadata))


def federation(own, tmp_path, seed=0, keys=None):
    key = None if keys is None else keys / "client.key"

    def make(number):
        return Node(setup_of(own, seed, number, key), NodeStorage(tmp_path / f"site{number}"))

    return InProcess(make, range(own.data.clients))


def coordinator(own, transport, recorder=None, seed=0, keys=None, **settings):
    setup = server_setup(own, seed, public_key=None if keys is None else keys / "server.pub",
                     **{"patience": 0.0, **settings})  # fmt: skip
    said = []
    made = Coordinator(transport, setup, recorder or Memory(), log=said.append)
    made.said = said
    return made


def simulated(own, seed=0, scheme=None):
    setup = build(own, seed, device="cpu", scheme=scheme)
    return setup, simulate(setup.method, setup.world, own.participants)
