"""Whatever a node sends, the server neither fails nor goes on for ever, and the other nodes' work counts."""

import hashlib
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from flameche.crypto.plain import PlainVector
from flameche.errors import FlamecheError
from flameche.network import node_registry
from flameche.network.message import Message, NoReply, bytes_array
from flameche.network.validation import format_problem
from tests.network.in_process import InProcess, coordinator, experiment, federation
from tests.network.test_replica import keys_for

ODD = (None, 5, -1, "x", "²", [], {}, [[1]], [2**70], 2**70, float("nan"), True)
FIVE = {"participation": 1.0, "rounds": 2, "data": {"clients": 5}}
PLAIN = {"scheme": {"kind": "plain"}, **FIVE}
GONE = object()


class Remembering(InProcess):
    """Asks a node once; the same question is answered from memory, also in another run."""

    def __init__(self, own, path):
        inner = federation(own, path)
        super().__init__(inner.make, inner.numbers)
        self.memory, self.told = {}, {}

    def again(self):
        """Forget what happened, not what was answered."""
        self.online, self.meddle, self.seen = set(self.numbers), None, []
        self.calls, self.exchanges = Counter(), 0
        return self

    def exchange(self, messages, timeout):
        self.exchanges += 1
        assert self.exchanges < 60, "no end"
        found = {}
        for address, message in messages.items():
            number, head = address - 100, message.head
            key = self.key(number, message)
            if key not in self.memory:
                reply = next(iter(super().exchange({address: message}, timeout).values()))
                self.exchanges -= 1
                if isinstance(reply, Message) and reply.head["what"] != "lack":
                    self.memory[key] = reply
            else:
                reply = self.memory[key]
                now = {name: head.get(name) for name in ("round", "attempt", "stage")}
                reply = Message({**reply.head, **now}, reply.arrays)
            found[address] = self.twisted(number, message, reply)
        return found

    twist = None

    def twisted(self, number, message, reply):
        return self.twist(number, message, reply) if self.twist and isinstance(reply, Message) else reply

    def key(self, number, message):
        """All that the node knows when it answers."""
        arrays = {n: hashlib.sha256(a.tobytes()).hexdigest() for n, a in message.arrays.items()}
        head = {k: v for k, v in message.head.items() if k not in ("nonce", "instance", "attempt")}
        if head["what"] != "round":
            return number, json.dumps([head, arrays], sort_keys=True)
        if "participants" in head:
            opening = [
                head["participants"],
                head["members"],
                head["finish"],
                head["held"],
                arrays.get("state"),
            ]
            self.told[number] = [opening]
        log = self.told[number]
        for at, answer in enumerate(head["answers"], head["from"]):
            del log[at + 1 :]
            log.append([answer, {n: h for n, h in arrays.items() if n.startswith(f"answer/{at}/")}])
        models = {n: h for n, h in arrays.items() if n.startswith("model/")}
        return number, json.dumps([head["round"], log[: head["stage"] + 1], models], sort_keys=True)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    made = {}

    def give(**tables):
        name = json.dumps(tables, sort_keys=True)
        if name not in made:
            own = experiment(**tables)
            made[name] = own, Remembering(own, tmp_path_factory.mktemp("nodes"))
        own, transport = made[name]
        transport.twist = None
        return own, transport.again()

    return give


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(node_registry, "RETRY_AFTER", 0.0)


def places(value, path=()):
    """Every place in a head, the deep ones too."""
    for key in value if isinstance(value, dict) else range(min(1, len(value))):
        yield (*path, key)
        if isinstance(value[key], dict | list):
            yield from places(value[key], (*path, key))


def changed(value, path, new):
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[key] = changed(value[key], rest, new)
    elif new is GONE:
        del copy[key]
    else:
        copy[key] = new
    return copy


def heads(reply):
    for path in places(reply.head):
        for new in (GONE, *ODD):
            what = "gone" if new is GONE else new
            yield f"{'.'.join(map(str, path))}: {what}", Message(changed(reply.head, path, new), reply.arrays)


def arrays(reply):
    for name, array in reply.arrays.items():
        odd = {
            "gone": None, "cut": array[:-1], "nan": np.full(array.shape, np.nan, np.float32),
            "text": np.array(["x"]), "bare": np.array(1.0), "float64": array.astype(np.float64),
            "bytes": np.zeros(64, np.uint8), "square": array[:4].reshape(-1, 1), "empty": array[:0],
        }  # fmt: skip
        for what, new in odd.items():
            rest = {n: a for n, a in reply.arrays.items() if n != name}
            yield f"{name}: {what}", Message(reply.head, rest if new is None else {**rest, name: new})
        for other in ("x" * 9999, f"give/{'9' * 9999}/x", "give/²/x", "give//x", "ask/", "message"):
            yield f"{name}: as {other[:12]}", Message(reply.head, {**reply.arrays, other: array})


def sort_of(message, reply):
    """What a reply is, so that one of each sort is tried."""
    head = reply.head
    said = head.get("said", {})
    gives = [one["kind"] for one in head.get("gives", [])]
    return (message.head["what"], head["what"], said.get("kind"), *gives)


def sorts(own, transport):
    found = {}

    def look(number, message, reply):
        if number == 1:
            found.setdefault(sort_of(message, reply), reply)
        return reply

    transport.twist = look
    records = coordinator(own, transport).run()
    transport.again()
    assert not any(r["lost"] for r in records)
    return found


def accepted(own, reply):
    """Some changed replies for each place that are not refused at sight; the look itself never fails."""
    places = Counter()
    for name, bad in [*heads(reply), *arrays(reply)]:
        why = format_problem(bad, own.data.clients)
        assert why is None or (isinstance(why, str) and "\n" not in why and len(why) < 500), name
        place = name.split(":")[0]
        places[place] += why is None
        if why is None and places[place] <= (6 if "/" in place else 2):
            yield name, bad


def test_every_sort_of_reply_changed_in_every_place(nodes):
    own, transport = nodes(**PLAIN)
    known = sorts(own, transport)
    assert {what for _, what, *_ in known} >= {"hello", "paused", "done", "score"}
    tried = 0
    for sort, reply in known.items():
        cases = dict(accepted(own, reply))
        cases["another what"] = Message({**reply.head, "what": ["done"]}, reply.arrays)  # refused at sight
        for name in sorted(cases):
            bad = cases[name]
            pairs = {key: value for key, value in bad.head.items() if value is not reply.head.get(key)}
            lacking = [key for key in reply.head if key not in bad.head]

            def twist(number, message, found, sort=sort, bad=bad, pairs=pairs, lacking=lacking):
                if number != 1 or sort_of(message, found) != sort:
                    return found
                head = {k: v for k, v in {**found.head, **pairs}.items() if k not in lacking}
                return Message(head, bad.arrays)

            transport.again()
            transport.twist = twist
            records = coordinator(own, transport).run()
            tried += 1
            others = [set(r["participants"]) >= {0, 2, 3, 4} and set(r["lost"]) <= {"1"} for r in records]
            assert len(records) == 2 and all(others), (sort, name, [r["lost"] for r in records])
    assert tried > 50


@pytest.mark.parametrize("method", [{"kind": "fedavg"}, {"kind": "ifca", "clusters": 2, "restarts": 2}])
def test_a_node_whose_word_alone_counts(method, nodes):
    """With one node a round nobody contradicts it."""
    own, transport = nodes(method=method, participation=0.1, rounds=1, data={"clients": 3})
    assert own.participants == 1
    ends = Counter()
    found = {}

    def look(number, message, reply):
        found.setdefault(sort_of(message, reply), reply)
        return reply

    transport.twist = look
    coordinator(own, transport).run()
    assert ("need" in {what for _, what, *_ in found}) == (method["kind"] == "ifca")  # it tries all models
    for sort, reply in found.items():
        for name, bad in accepted(own, reply):

            def twist(number, message, now, sort=sort, bad=bad):
                if sort_of(message, now) != sort:
                    return now
                about = {key: now.head[key] for key in ("round", "attempt", "stage", "number")}
                return Message({**bad.head, **about}, bad.arrays)

            if name.split(":")[0] in ("round", "attempt", "stage", "number"):
                continue
            transport.again()
            transport.twist = twist
            try:
                coordinator(own, transport).run()
                ends["well"] += 1
            except FlamecheError as problem:
                ends[type(problem).__name__] += 1
    assert ends["TooFewNodes"] > 5 and ends["well"] > 5


def test_the_first_to_come_does_not_decide_how_metadata_look(nodes, monkeypatch):
    own, transport = nodes(**PLAIN)
    transport.online = {1}
    patient = []

    def nodes_now():
        patient.append(1)
        transport.online = {1} if len(patient) == 1 else set(transport.numbers)
        return InProcess.nodes(transport)

    def odd(number, message, reply):
        return Message({**reply.head, "blocks": [9, 9]}) if number == 1 and "blocks" in reply.head else reply

    transport.nodes, transport.twist = nodes_now, odd
    pauses = []  # only they take time, so that there are two looks on a slow machine too
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(node_registry, "time", clock)
    server = coordinator(own, transport, patience=0.9)
    try:
        records = server.run()
    finally:
        del transport.nodes
    assert [r["participants"] for r in records] == [[0, 2, 3, 4]] * 2
    assert server.registry.known == [0, 2, 3, 4] and any("[9, 9]" in line for line in server.said)


def test_a_stranger_who_comes_first_decides_nothing(nodes):
    own, transport = nodes(**PLAIN)
    strange = {"blocks": [9, 9], "run": "other"}
    transport.twist = lambda n, p, reply: (
        Message({**reply.head, **strange}) if n in (0, 1, 2) and "blocks" in reply.head else reply
    )
    records = coordinator(own, transport).run()
    assert [r["participants"] for r in records] == [[3, 4]] * 2


def test_a_first_term_of_another_length(nodes):
    own, transport = nodes(**PLAIN)
    bad = bytes_array(PlainVector(np.ones(7)).to_bytes())

    def twist(number, message, reply):
        sealed = [n for n in reply.arrays if n.startswith("give/") and n.endswith("sealed")]
        return Message(reply.head, {**reply.arrays, sealed[0]: bad}) if number == 0 and sealed else reply

    transport.twist = twist
    records = coordinator(own, transport).run()
    assert list(records[0]["lost"]) == ["0"] and "7 numbers" in records[0]["lost"]["0"]
    assert records[0]["participants"] == [1, 2, 3, 4]


def test_a_term_for_one_phase_that_counts_several(tmp_path):
    own = experiment(**{**PLAIN, "scheme": {"kind": "bfv", "min_cluster": 1}, "rounds": 1})
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, keys=keys)
    server = coordinator(own, transport, keys=keys)

    def meddle(number, message, reply):
        if number != 1 or isinstance(reply, NoReply) or reply.head.get("said", {}).get("kind") != "once":
            return reply
        adder = server.setup.rules.adder
        many = adder.add([adder.load(reply.arrays["ask/sealed"].tobytes())] * 3)
        return Message(reply.head, {**reply.arrays, "ask/sealed": bytes_array(many.to_bytes())})

    transport.meddle = meddle
    server.run()
    assert any("node 1 is excluded: its ciphertext is a sum of 3" in line for line in server.said)
    assert server.state.outcome["dbi"] is not None and transport.exchanges < 40
