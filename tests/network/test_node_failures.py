"""Nodes that are lost, and servers that fall: a fault costs at most its own contribution."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from flameche.errors import DataError
from flameche.network import node_registry
from flameche.network.message import Message, NoReply
from flameche.network.server_state import TooFewNodes
from tests.network.in_process import Memory, coordinator, experiment, federation
from tests.network.test_replica import assert_equal, both, keys_for

PAPER = {"scheme": {"kind": "plain"}}


class Killed(BaseException):
    """The server's process ends here."""


def same(records, others, keys=("participants", "assignment", "accuracy", "sizes")):
    assert [[r[key] for key in keys] for r in records] == [[r[key] for key in keys] for r in others]


def breaking(transport, when, how):
    """Let `how` meddle once, with the first reply for which `when` holds."""
    done = []

    def meddle(number, message, reply):
        if not done and isinstance(reply, Message) and when(number, message, reply):
            done.append(number)
            return how(reply)
        return reply

    transport.meddle = meddle
    return done


def in_round(r, what):
    return lambda number, message, reply: message.head.get("round") == r and reply.head["what"] == what


def garbled(prefix, change):
    def how(reply):
        hit = [name for name in reply.arrays if name.startswith(prefix)]
        return Message(reply.head, {n: change(a) if n in hit else a for n, a in reply.arrays.items()})

    return how


def has(r, prefix):
    return lambda number, message, reply: (
        message.head.get("round") == r and any(name.startswith(prefix) for name in reply.arrays)
    )


FAULTS = {
    "dies when asked": (in_round(2, "paused"), lambda reply: NoReply("killed")),
    "sends NaN": (has(2, "give/1/"), garbled("give/1/", lambda a: np.full_like(a, np.nan))),
    "tells nonsense": (has(2, "ask/value"), garbled("ask/value", lambda a: a + 1000)),
    "goes another way": (
        in_round(2, "paused"),
        lambda reply: Message({**reply.head, "said": {**reply.head["said"], "clients": []}}, reply.arrays),
    ),
}


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What happens where nothing happens; by scheme, played once."""
    played = {}

    def play(own, keys=None):
        if own not in played:
            transport = federation(own, tmp_path_factory.mktemp("calm"), keys=keys)
            played[own] = coordinator(own, transport, keys=keys).run()
        return played[own]

    return play


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_a_round_as_if_the_node_had_not_been_drawn(fault, tmp_path, calm):
    own = experiment(**PAPER)
    when, how = FAULTS[fault]
    transport = federation(own, tmp_path)
    done = breaking(transport, when, how)
    server = coordinator(own, transport)
    records = server.run()
    (out,) = done
    undisturbed, hit = calm(own), 1
    assert list(records[hit]["lost"]) == [str(out)]
    assert any(f"node {out} is excluded" in line for line in server.said)
    same(records[:hit], undisturbed[:hit])
    assert records[hit]["participants"] == [i for i in undisturbed[hit]["participants"] if i != out]
    assert [r["participants"] for r in records[hit + 1 :]] == [
        r["participants"] for r in undisturbed[hit + 1 :]
    ]
    assert all(not r["lost"] for r in records[hit + 1 :])


@pytest.mark.parametrize("scheme", ["bfv", "secagg"])
def test_a_node_lost_after_sums_were_seen_changes_nothing(scheme, tmp_path, calm):
    mode = {"bfv": {}, "secagg": {"recluster_over": "participants", "tau": 2}}[scheme]
    own = experiment(scheme={"kind": scheme, "min_cluster": 1}, method=mode)
    keys = keys_for(own, tmp_path / "keys")
    undisturbed = calm(own, keys)
    transport = federation(own, tmp_path, keys=keys)
    done = breaking(transport, in_round(2, "done"), lambda reply: NoReply("killed"))
    records = coordinator(own, transport, keys=keys).run()
    assert list(records[1]["lost"]) == [str(done[0])]
    if scheme == "bfv":
        same(records, undisturbed)
    else:  # masks come before training there, so that its model was still to come
        same(records, undisturbed, ("participants", "assignment", "sizes"))


@pytest.mark.parametrize("step", ["share", "mask", "unmask"])
def test_a_node_lost_in_a_session_of_secure_aggregation(step, tmp_path, calm):
    paper = {"recluster_over": "participants", "tau": 2}  # one session with everybody
    own = experiment(scheme={"kind": "secagg", "min_cluster": 1}, method=paper)
    undisturbed = calm(own)
    transport = federation(own, tmp_path)
    done = breaking(
        transport,
        lambda number, message, reply: message.head.get("step") == step and message.head["round"] == 2,
        lambda reply: NoReply("killed"),
    )
    records = coordinator(own, transport).run()
    assert list(records[1]["lost"]) == [str(done[0])]
    if step == "unmask":  # its vector is in the sum already
        same(records, undisturbed, ("participants", "assignment", "sizes"))
    else:
        assert records[1]["participants"] == [i for i in undisturbed[1]["participants"] if i != done[0]]


def test_another_key_is_refused_at_the_door_and_a_forged_term_later(tmp_path):
    own = experiment(scheme={"kind": "bfv", "min_cluster": 1})
    keys, others = keys_for(own, tmp_path / "keys"), keys_for(own, tmp_path / "others")
    transport, stranger = federation(own, tmp_path, keys=keys), federation(own, tmp_path / "o", keys=others)
    make = transport.make
    transport.make = lambda number: stranger.make(number) if number == 3 else make(number)
    server = coordinator(own, transport, keys=keys)
    records = server.run()
    assert any("node 3 has another key" in line for line in server.said)
    assert all(3 not in r["participants"] for r in records)

    transport = federation(own, tmp_path / "again", keys=keys)
    done = breaking(transport, has(1, "give/0/sealed"), garbled("give/0/sealed", lambda a: np.roll(a, 7)))
    server = coordinator(own, transport, keys=keys)
    records = server.run()
    assert list(records[0]["lost"]) == [str(done[0])]
    assert "cannot be used" in records[0]["lost"][str(done[0])]


@pytest.mark.parametrize(
    ("scheme", "moment"),
    [
        *(("bfv", moment) for moment in ("first", "middle", "end", "between")),
        ("secagg", "middle"),
        ("plain", "middle"),
    ],
)
def test_a_server_that_falls_goes_on_as_if_it_had_not(scheme, moment, tmp_path, calm):
    own = experiment(scheme={"kind": scheme, "min_cluster": 1})
    keys = keys_for(own, tmp_path / "keys")
    undisturbed = calm(own, keys)
    transport, memory, count = federation(own, tmp_path, keys=keys), Memory(), []
    what = {"first": "paused", "middle": "paused", "end": "done", "between": "score"}[moment]

    def fall(number, message, reply):
        if message.head.get("round") == 2 and reply.head["what"] == what:
            count.append(number)
            if len(count) == (1 if moment == "first" else 6 if moment == "middle" else 3):
                raise Killed
        return reply

    transport.meddle = fall
    with pytest.raises(Killed):
        coordinator(own, transport, memory, keys=keys).run()
    transport.meddle = None
    again = coordinator(own, transport, memory, keys=keys)
    records = again.run()
    same(records, undisturbed)
    assert any("resuming after round" in line for line in again.said)


def test_too_few_nodes_stop_the_run_and_lose_nothing(tmp_path, calm):
    own = experiment(**PAPER)
    transport, memory = federation(own, tmp_path), Memory()

    def vanish(number, message, reply):
        if message.head.get("round") == 3:
            transport.online.clear()
            return NoReply("gone")
        return reply

    transport.meddle = vanish
    with pytest.raises(TooFewNodes, match="round 3: 0 nodes are online"):
        coordinator(own, transport, memory).run()
    transport.meddle, transport.online = None, set(transport.numbers)
    undisturbed = calm(own)
    same(coordinator(own, transport, memory).run(), undisturbed)


def with_unusable_data(transport, numbers, why):
    """Let the metadata of these nodes fail to be made, as they do where data cannot be used."""
    usual = transport.make

    def unusable(number):
        raise DataError(f"node {number}: {why}")

    def make(number):
        node = usual(number)
        if number in numbers:
            node.setup = replace(node.setup, metadata=lambda: unusable(number))
        return node

    transport.make = make


@pytest.fixture
def unwaiting(monkeypatch):
    def waited(seconds):
        raise AssertionError("it waits for nodes that cannot come")

    monkeypatch.setattr(node_registry, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited))


@pytest.mark.usefixtures("unwaiting")
def test_a_run_whose_nodes_have_unusable_data_ends_at_once_and_says_why_once(tmp_path):
    own = experiment(**PAPER)
    transport = federation(own, tmp_path)
    with_unusable_data(transport, range(1, own.data.clients), "y is empty")
    server = coordinator(own, transport, patience=3600.0)
    with pytest.raises(
        TooFewNodes, match=r"1 nodes are online and 2 are needed, 5 were refused .* correct these"
    ):
        server.run()
    assert server.said == [f"a node is refused: node {n}: y is empty" for n in range(1, 6)]


@pytest.mark.usefixtures("unwaiting")
def test_nodes_whose_metadata_are_not_finite_are_refused_with_the_likely_cause(tmp_path):
    own = experiment(**PAPER)
    transport = federation(own, tmp_path)
    usual = transport.make

    def make(number):
        node = usual(number)
        metadata = node.setup.metadata()
        node.setup = replace(node.setup, metadata=lambda: replace(metadata, phi=metadata.phi * np.nan))
        return node

    transport.make = make
    server = coordinator(own, transport, patience=3600.0)
    with pytest.raises(TooFewNodes, match=r"0 nodes are online and 2 are needed"):
        server.run()
    assert len(server.said) == own.data.clients
    for number, line in enumerate(server.said):
        assert line.startswith(f"a node is refused: node {number}: its metadata hold NaN or infinity")
        assert "model.kind" in line


@pytest.mark.usefixtures("unwaiting")
def test_a_run_goes_on_without_a_node_whose_data_are_unusable_and_takes_it_in_once_corrected(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        node_registry, "RETRY_AFTER", 0.0
    )  # greeted again whenever somebody looks who is there
    own = experiment(**{**PAPER, "rounds": 3, "participation": 1.0})
    transport = federation(own, tmp_path)
    numbers = {2}
    with_unusable_data(transport, numbers, "y is empty")
    server = coordinator(own, transport, patience=3600.0)
    server._on_round = lambda record: numbers.clear() if record["round"] == 2 else None
    records = server.run()
    assert [2 in record["participants"] for record in records] == [False, False, True]
    assert transport.calls["hello"] > own.data.clients + 2
    assert server.said.count("a node is refused: node 2: y is empty") == 1


@pytest.mark.parametrize("sites", [{6: None, 7: None}, {6: 3, 7: 3}, {6: 2, 7: 9}, {6: 5, 7: 5}])
def test_nodes_that_stand_for_no_absent_site_do_not_stop_the_wait_for_others(sites, tmp_path, monkeypatch):
    transport = federation(experiment(**PAPER), tmp_path)
    transport.online = {0, 1, 2, 3, *sites}
    transport.sites = sites
    looks = []

    def wait(seconds):  # the last sites come when somebody has waited for them
        looks.append(seconds)
        transport.online |= {4, 5}

    monkeypatch.setattr(node_registry, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait))
    server = coordinator(experiment(**PAPER), transport, patience=3600.0)
    assert server.registry.wait_for(6) == [0, 1, 2, 3, 4, 5] and len(looks) == 1


def test_a_node_that_lost_its_disk_is_told_everything_again(tmp_path, calm):
    own = experiment(**PAPER)
    undisturbed = calm(own)
    transport = federation(own, tmp_path)
    make, calls = transport.make, []

    def forgetful(number):
        node = make(number)
        calls.append(number)
        if number == 4 and len(calls) % 3 == 0:
            node.storage.delete("round.", "answer.", "metadata.", "trained.")
        return node

    transport.make = forgetful
    same(coordinator(own, transport).run(), undisturbed)


def test_a_site_that_comes_late_and_one_that_is_removed(tmp_path):
    own = experiment(**PAPER, rounds=4, participation=1.0)
    transport = federation(own, tmp_path)
    transport.online.discard(5)

    def arrive(number, message, reply):
        if message.head.get("round") == 2:
            transport.online.add(5)
        return reply

    transport.meddle = arrive
    records = coordinator(own, transport).run()
    assert [5 in r["participants"] for r in records] == [False, False, True, True]
    assert records[-1]["assignment"][5] >= 0
    transport.meddle = None
    records = coordinator(own, federation(own, tmp_path / "r"), removed=(2,)).run()
    assert all(2 not in r["participants"] and r["assignment"][2] == -1 for r in records)


def test_the_law_holds_for_other_seeds_and_a_guard(tmp_path):
    own = experiment(scheme={"kind": "bfv", "min_cluster": 3}, rounds=4, data={"clients": 9})
    server, records, (setup, result) = both(own, tmp_path, seed=5)
    assert_equal(server, records, setup, result)
