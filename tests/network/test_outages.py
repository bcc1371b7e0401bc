"""Outages of many at once, of the server, of disks; nodes that move, come back, or are alone."""

import numpy as np
import pytest

from flameche.network import node_registry
from flameche.network.message import Message, NoReply, bytes_array, npz_arrays, npz_bytes
from flameche.network.server_state import TooFewNodes
from tests.network.in_process import InProcess, Memory, coordinator, experiment, federation
from tests.network.test_replica import assert_equal, both, keys_for

EVERYBODY = {"participation": 1.0, "rounds": 2, "data": {"clients": 5}}
FEDAVG = {"method": {"kind": "fedavg"}, **EVERYBODY}
PAPER = {"scheme": {"kind": "plain"}, **EVERYBODY}
BFV = {**PAPER, "scheme": {"kind": "bfv", "min_cluster": 1}}
SEEN = {
    "scheme": {"kind": "secagg", "min_cluster": 1},
    "method": {"recluster_over": "participants", "tau": 0},
    **EVERYBODY,
}


class Killed(BaseException):
    """The server's process ends here."""


def falling(when):
    def meddle(number, message, reply):
        if when(message.head):
            raise Killed
        return reply

    return meddle


def about(reply):
    return {key: reply.head.get(key) for key in ("run", "round", "attempt", "stage", "number")}


def test_nodes_that_are_all_silent_once_after_a_sum_was_seen_finish_the_round(tmp_path):
    own = experiment(**BFV)
    keys = keys_for(own, tmp_path / "keys")
    transport, silent = federation(own, tmp_path, keys=keys), set()

    def meddle(number, message, reply):
        late = message.head["what"] == "round" and message.head["round"] == 2 and message.head["stage"] >= 2
        if late and number not in silent:
            silent.add(number)
            return NoReply("no answer in 600 s")
        return reply

    transport.meddle = meddle
    records = coordinator(own, transport, keys=keys).run()
    assert silent == set(transport.numbers) and transport.exchanges < 60
    assert len(records[1]["lost"]) == 5 and min(records[1]["assignment"]) >= 0


@pytest.mark.parametrize(("tables", "stage"), [(SEEN, 0), (PAPER, 2)], ids=["secagg", "mid-round"])
def test_a_node_is_removed_while_the_server_is_down(tables, stage, tmp_path):
    own = experiment(**{**tables, "rounds": 3})
    transport, memory = federation(own, tmp_path), Memory()
    transport.meddle = falling(lambda head: head.get("round") == 2 and head.get("stage", -1) >= stage)
    with pytest.raises(Killed):
        coordinator(own, transport, memory).run()
    assert (memory.checkpoint.ledger["coordinator"]["now"] is not None) == (stage > 0)
    transport.meddle = None
    records = coordinator(own, transport, memory, removed=(2,)).run()
    assert 2 not in records[-1]["participants"] and records[-1]["assignment"][2] == -1
    assert transport.exchanges < 100 and not records[-1]["lost"]


def test_who_belongs_does_not_change_within_a_round(tmp_path):
    own = experiment(**PAPER)
    transport, memory = federation(own, tmp_path), Memory()
    transport.online.discard(4)
    transport.meddle = falling(lambda head: head.get("round") == 3 and head.get("stage", 0) >= 3)
    with pytest.raises(Killed):
        coordinator(own, transport, memory).run()
    assert memory.checkpoint.ledger["coordinator"]["now"]["finish"]
    transport.meddle, transport.online = None, set(transport.numbers)
    server = coordinator(own, transport, memory)
    server.run()
    assert server.state.outcome["final"][4] == -1 and min(server.state.outcome["final"][:4]) >= 0


def test_what_another_run_trained_is_not_taken(tmp_path):
    other, own = experiment(**FEDAVG), experiment(**FEDAVG, training={"lr": 0.3})
    transport = federation(other, tmp_path / "used")
    transport.meddle = falling(lambda head: head["what"] == "evaluate")
    with pytest.raises(Killed):
        coordinator(other, transport).run()
    models = []
    for folder in ("used", "clean"):
        server = coordinator(own, federation(own, tmp_path / folder))
        server.run()
        models.append(server.aggregator.models[server.state.names[0]]["params"])
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize("kind", ["cut", "another key", "another array"])
def test_a_state_that_nobody_can_read_is_taken_from_another_node(kind, tmp_path):
    own = experiment(**(BFV if kind == "another key" else FEDAVG))
    keys = keys_for(own, tmp_path / "keys")
    transport, done = federation(own, tmp_path, keys=keys), []

    def meddle(number, message, reply):
        if number == 0 and not done and reply.head["what"] == "done":
            done.append(number)
            state = reply.arrays["ask/state"]
            bad = {"cut": state[:-30], "another key": state[::-1].copy(), "another array": np.ones(3)}[kind]
            return Message(reply.head, {**reply.arrays, "ask/state": bad})
        return reply

    transport.meddle = meddle
    records = coordinator(own, transport, keys=keys).run()
    assert done and transport.exchanges < 60
    assert [r["lost"] for r in records] == [{}, {}] and [r["participants"] for r in records] == [
        [*range(5)]
    ] * 2
    assert not np.isnan([r["accuracy"] for r in records]).any()


def test_a_node_that_restarts_under_another_address_takes_part_again(tmp_path, monkeypatch):
    monkeypatch.setattr(node_registry, "RETRY_AFTER", 0.0)
    own = experiment(**{**FEDAVG, "rounds": 4})
    transport = federation(own, tmp_path)
    online, dead = set(InProcess.nodes(transport)), set()

    def exchange(messages, timeout):
        found = {}
        for address, message in messages.items():
            real = {100 + (address - 100) % 50: message}
            answer = NoReply("no answer") if address in dead else InProcess.exchange(transport, real, timeout)
            found[address] = answer if isinstance(answer, NoReply) else next(iter(answer.values()))
        return found

    def meddle(number, message, reply):
        if message.head["what"] == "evaluate" and message.head["round"] == 1:
            dead.add(102)
            online.add(152)  # the old address is still listed
        return reply

    transport.nodes, transport.exchange, transport.meddle = lambda: sorted(online), exchange, meddle
    records = coordinator(own, transport).run()
    assert [2 in r["participants"] for r in records][2:] == [True, True]


@pytest.mark.parametrize("kinds", [("need", "need"), ("lack", "lack"), ("need", "lack")])
def test_a_node_that_asks_again_and_again_is_lost(kinds, tmp_path):
    own = experiment(**FEDAVG)
    transport, count = federation(own, tmp_path), []

    def meddle(number, message, reply):
        if number == 0 and message.head["what"] == "round" and message.head["round"] == 2:
            count.append(1)
            what = kinds[len(count) % 2]
            return Message({**about(reply), "what": what, **({"names": ["1.0"]} if what == "need" else {})})
        return reply

    transport.meddle = meddle
    records = coordinator(own, transport).run()
    assert "again and again" in records[1]["lost"]["0"] and records[1]["participants"] == [1, 2, 3, 4]
    assert transport.exchanges < 40


def failing(number, message, reply):
    return reply if message.head["what"] == "hello" else NoReply("failed: RuntimeError")


def disagreeing(number, message, reply):
    if number == 0 and reply.head["what"] == "done":
        return Message({**reply.head, "said": {**reply.head["said"], "names": ["x"]}}, reply.arrays)
    return reply


@pytest.mark.parametrize(
    ("tables", "meddle", "why"),
    [
        (FEDAVG, failing, "node 4: failed: RuntimeError"),
        ({**FEDAVG, "training": {"lr": 1e30}}, None, "lower training.lr"),
        ({**FEDAVG, "data": {"clients": 2}}, disagreeing, "node 1: disagrees with most nodes"),
    ],
    ids=["all fail", "training diverges", "two disagree"],
)
def test_where_nobody_is_left_the_run_stops_and_says_why(tables, meddle, why, tmp_path):
    own, memory = experiment(**tables), Memory()
    transport = federation(own, tmp_path)
    transport.meddle = meddle
    with pytest.raises(TooFewNodes) as problem:
        coordinator(own, transport, memory).run()
    assert why in str(problem.value) and "the same command resumes" in str(problem.value)
    assert transport.exchanges < 60
    if meddle:
        transport.meddle = None
        assert len(coordinator(own, transport, memory).run()) == 2


@pytest.mark.parametrize(
    "tables",
    [PAPER, {**FEDAVG, "method": {"kind": "ifca", "clusters": 2, "restarts": 1}}],
    ids=["flameche", "ifca"],
)
def test_who_is_away_at_the_end_stays_where_it_was(tables, tmp_path):
    own = experiment(**tables)
    transport = federation(own, tmp_path)

    def meddle(number, message, reply):
        if message.head.get("round") == 2 and message.head["what"] == "evaluate":
            transport.online = {3, 4}
        return reply

    transport.meddle = meddle
    server = coordinator(own, transport)
    server.run()
    stored = server.state.assignment.tolist()
    assert min(stored) == 0 and max(stored) == 1  # there is a difference to make
    assert server.state.outcome["final"][:3] == stored[:3]


def test_what_newcomers_need_is_taken_from_most_nodes_and_survives_the_server(tmp_path):
    own = experiment(**PAPER)
    transport, memory = federation(own, tmp_path), Memory()

    def meddle(number, message, reply):
        bad = {0: b"no archive", 1: npz_bytes({"theta": np.ones(3)})}.get(number)
        if isinstance(reply, NoReply) or "ask/keep" not in reply.arrays or bad is None:
            return reply
        return Message(reply.head, {**reply.arrays, "ask/keep": bytes_array(bad)})

    transport.meddle = meddle
    server = coordinator(own, transport, memory)
    server.run()
    again = coordinator(own, transport, memory)
    again.run()
    expected = npz_arrays((tmp_path / "site2" / "clusters.npz").read_bytes())
    for kept in (server.state.newcomer_bundle, again.state.newcomer_bundle):
        assert kept.keys() == expected.keys()
        assert all(np.array_equal(kept[name], expected[name]) for name in expected)


@pytest.mark.parametrize("file", ["round.npz", "answer.0", "metadata.npz"])
def test_a_damaged_file_on_a_node_is_told_or_made_again(file, tmp_path):
    own = experiment(**PAPER)
    transport = federation(own, tmp_path)
    make, hit = transport.make, []

    def damaged(number):
        path = tmp_path / "site3" / file
        if number == 3 and path.exists() and len(hit) < 3:
            data = path.read_bytes()
            path.write_bytes((b"", data[:100], data[:40] + bytes(8) + data[48:])[len(hit)])
            hit.append(file)
        return make(number)

    transport.make = damaged
    records = coordinator(own, transport).run()
    assert len(hit) == 3 and [r["lost"] for r in records] == [{}, {}]


def test_one_of_many_takes_part_in_a_round(tmp_path):
    own = experiment(**{**PAPER, "participation": 0.1, "rounds": 3})
    assert own.participants == 1
    assert_equal(*_flat(both(own, tmp_path)))


@pytest.mark.parametrize("clients", [1, 2])
def test_the_smallest_federations(clients, tmp_path):
    method = {"clusters": 1} if clients > 1 else {"kind": "fedavg"}
    own = experiment(**{**EVERYBODY, "data": {"clients": clients, "groups": 1}, "method": method})
    assert_equal(*_flat(both(own, tmp_path)))


def _flat(found):
    server, records, (setup, result) = found
    return server, records, setup, result


def test_sealed_metadata_are_sent_once_in_paper_mode_too(tmp_path):
    own = experiment(**BFV)
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, keys=keys)
    coordinator(own, transport, keys=keys).run()
    sent = [
        n for n, _, reply in transport.seen for a in reply.arrays if a.endswith("/sealed") and "give" in a
    ]
    assert sorted(sent) == transport.numbers


def test_a_file_that_cannot_be_read_says_so_without_its_path(tmp_path):
    own = experiment(**FEDAVG)
    transport = federation(own, tmp_path)
    node = transport.make(0)
    (tmp_path / "site0" / "metadata.npz").mkdir()
    with pytest.raises(Exception, match="its own folder cannot be used") as problem:
        node.handle(Message({"what": "hello"}, {"x": bytes_array(b"")}))
    assert str(tmp_path) not in str(problem.value)
