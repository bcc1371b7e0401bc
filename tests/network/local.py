"""A federation in one process: real nodes on disks of their own, and a transport that can be told to fail."""

from collections import Counter

from flameche.errors import FlamecheError
from flameche.experiments.build import build
from flameche.experiments.config import parse_experiment
from flameche.experiments.deployment import node_work, server_job, simulated_data
from flameche.network.coordinator import Coordinator
from flameche.network.node import Node
from flameche.network.parcel import Lost, Parcel
from flameche.network.site import Site
from flameche.simulation.engine import Unrecorded, simulate

TINY = {
    "name": "net",
    "rounds": 4,
    "participation": 0.6,
    "data": {"dataset": "digits", "clients": 10, "groups": 2, "per_label": 5, "heterogeneity": "csl"},
    "training": {"epochs": 1, "batch": 16, "trainer": "loop"},
    "method": {"kind": "flameche", "clusters": 2},
}


def experiment(**tables):
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in TINY.items()}
    for key, value in tables.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
        if key == "method" and value.get("kind", "flameche") != "flameche":
            merged[key] = value
    return parse_experiment(merged)


class Local:
    """Carries parcels by calling; every message meets a new `Node`, as in a process of its own."""

    def __init__(self, make, numbers):
        self.make, self.numbers = make, list(numbers)
        self.online = set(self.numbers)
        self.calls = Counter()
        self.seen = []
        self.meddle = None  # (number, parcel, reply) -> reply or Lost

    def nodes(self):
        return [100 + number for number in sorted(self.online)]

    def exchange(self, parcels, timeout):
        found = {}
        for address, parcel in parcels.items():
            number = address - 100
            self.calls[parcel.head["what"]] += 1
            try:
                sent = Parcel.from_bytes(parcel.to_bytes())
                reply = self.make(number).handle(sent)
                reply = Parcel.from_bytes(reply.to_bytes())
            except FlamecheError as problem:
                reply = Lost(str(problem))
            if self.meddle:
                reply = self.meddle(number, parcel, reply)
            self.seen.append((number, parcel, reply))
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


def federation(own, tmp_path, seed=0, keys=None):
    works = {}

    def make(number):
        if number not in works:
            data = simulated_data(own, seed, number)
            key = None if keys is None else keys / "client.key"
            works[number] = node_work(own, seed, number, lambda: data, key_file=key)
        return Node(works[number], Site(tmp_path / f"site{number}"))

    return Local(make, range(own.data.clients))


def coordinator(own, transport, recorder=None, seed=0, keys=None, **settings):
    job = server_job(own, seed, public_key=None if keys is None else keys / "server.pub",
                     **{"patience": 0.0, **settings})  # fmt: skip
    said = []
    made = Coordinator(transport, job, recorder or Memory(), say=said.append)
    made.said = said
    return made


def simulated(own, seed=0, scheme=None):
    setup = build(own, seed, device="cpu", scheme=scheme)
    return setup, simulate(setup.method, setup.world, own.participants)
