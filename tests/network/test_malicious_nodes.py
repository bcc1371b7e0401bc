"""A node that means harm, or is broken, is named and left out; a run that begins anew knows no other."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from flameche.crypto.plain import PlainVector
from flameche.crypto.registry import make_scheme
from flameche.errors import StoreError
from flameche.experiments.protection import deferred_notes
from flameche.network.message import Message, NoReply, bytes_array
from flameche.network.node_storage import NodeStorage
from flameche.network.server_state import RoundState, TooFewNodes
from flameche.network.validation import format_problem
from tests.crypto.test_lattice import negated, oddly_sealed
from tests.network.in_process import Memory, coordinator, experiment, federation, simulated
from tests.network.test_replica import keys_for

FIVE = {"participation": 1.0, "rounds": 2, "data": {"clients": 5}, "method": {"mode": "paper"}}


def giving(number, bad):
    """Let a node give another sealed term than its own."""

    def meddle(n, message, reply):
        own = [] if isinstance(reply, NoReply) else [a for a in reply.arrays if a.endswith("/sealed")]
        if n != number or not own:
            return reply
        return Message(reply.head, {**reply.arrays, own[0]: bytes_array(bad(reply.arrays[own[0]].tobytes()))})

    return meddle


@pytest.mark.parametrize("how", ["NaN", "bfv", "ckks"])
def test_a_term_that_spoils_every_sum_is_refused_by_name(how, tmp_path):
    kind = "plain" if how == "NaN" else how
    own = experiment(**FIVE, scheme={"kind": kind, "min_cluster": 1})
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, keys=keys)

    def bad(sealed):
        if how == "NaN":
            length = len(transport.make(1).setup.scheme.adder().load(sealed).values)
            return PlainVector(np.full(length, np.nan)).to_bytes()
        return oddly_sealed(transport.make(1).setup.scheme, sealed, "long")

    transport.meddle = giving(1, bad)
    records = coordinator(own, transport, keys=keys).run()
    assert [r["participants"] for r in records] == [[0, 2, 3, 4]] * 2
    assert "cannot be used" in records[0]["lost"]["1"]


def test_a_lone_node_that_wants_a_session_by_itself_is_lost(tmp_path):
    own = experiment(method={"kind": "fedavg"}, participation=0.1, rounds=1, data={"clients": 3})
    transport = federation(own, tmp_path)

    def meddle(number, message, reply):
        if message.head["what"] != "round":
            return reply
        said = {"kind": "masked", "clients": [number], "label": "x", "length": 3}
        return Message({**reply.head, "what": "paused", "gives": [], "said": said})

    transport.meddle = meddle
    with pytest.raises(TooFewNodes, match="at least 2 clients"):
        coordinator(own, transport).run()


def test_a_node_that_is_lost_is_told_once_and_why(tmp_path):
    own = experiment(scheme={"kind": "secagg", "min_cluster": 1}, method={"mode": "paper"}, rounds=1)
    transport, lost = federation(own, tmp_path), []

    def meddle(number, message, reply):
        if message.head.get("step") == "unmask" and message.head["round"] == 2 and not lost:
            lost.append(number)  # in the last words, where several sums follow each other
        return NoReply("its line was cut") if lost == [number] else reply

    transport.meddle = meddle
    server = coordinator(own, transport)
    server.run()
    out = [line for line in server.said if "is excluded" in line]
    assert out == [f"round 2: node {lost[0]} is excluded: its line was cut"]


def test_who_goes_on_with_a_round_may_draw_again():
    spent = RoundState(3, [0, 1], [0, 1, 2], draws=3)
    assert RoundState.from_checkpoint(spent.to_json(), {}).draws == 1


def test_metadata_are_made_anew_for_a_run_that_begins_anew_and_kept_while_it_goes_on(tmp_path):
    own, made, memory = experiment(**FIVE), [], Memory()
    transport = federation(own, tmp_path)
    make = transport.make

    def counted(number):
        node = make(number)
        real = node.setup.metadata
        node.setup = replace(node.setup, metadata=lambda: made.append(number) or real())
        return node

    transport.make = counted
    coordinator(own, transport, memory).run()
    assert sorted(made) == transport.numbers
    memory.checkpoint.ledger["coordinator"]["standing"]["outcome"] = {}
    coordinator(own, transport, memory).run()
    assert len(made) == 5
    coordinator(own, transport).run()
    assert sorted(made) == sorted(transport.numbers * 2)


def test_numbers_that_no_message_can_hold_are_left_out(tmp_path):
    node = federation(experiment(**FIVE), tmp_path).make(0)
    end = SimpleNamespace(assignment=None, dbi=float("nan"), ch=float("inf"), keep={})
    said, kept = node._finish(SimpleNamespace(finish=lambda: end))
    assert said == {"final": None, "dbi": None, "ch": None} and kept == {}


@pytest.mark.parametrize("text", ["x\nround 1/2 · nodes 0-4", "\x1b[2J", "x\r"])
def test_words_that_would_forge_the_operators_lines_are_refused(text):
    hello = {"what": "hello", "run": "r", "fingerprint": "f", "version": "1", "size": 3, "blocks": [1, 2]}
    assert format_problem(Message(hello), 5) is None
    assert format_problem(Message({**hello, "run": text}), 5) is not None


def test_no_message_reaches_a_file_outside_a_nodes_folder(tmp_path):
    (tmp_path / "session.x").mkdir()
    (tmp_path / "secret").write_bytes(b"s")
    site = NodeStorage(tmp_path)
    for reach in (site.read_once, lambda name: site.write(name, b"")):
        with pytest.raises(StoreError, match="is not a file"):
            reach("session.x/../secret")
    assert (tmp_path / "secret").read_bytes() == b"s"


@pytest.mark.parametrize(("kind", "mode"), [("bfv", "paper"), ("ckks", "paper"), ("bfv", "sketch")])
def test_a_term_that_is_anothers_negative_costs_a_sum_and_not_the_run(kind, mode, tmp_path):
    own = experiment(
        **{**FIVE, "method": {"mode": mode, "clusters": 1}}, scheme={"kind": kind, "min_cluster": 1}
    )
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, keys=keys)
    first = {}

    def meddle(number, message, reply):
        for name in [] if isinstance(reply, NoReply) else [a for a in reply.arrays if a.endswith("/sealed")]:
            sealed = reply.arrays[name].tobytes()
            if number == 0:
                first["sealed"] = sealed
            elif number == 1 and "sealed" in first:
                bad = negated(transport.make(1).setup.scheme, first["sealed"])
                reply = Message(reply.head, {**reply.arrays, name: bytes_array(bad)})
        return reply

    transport.meddle = meddle
    memory = Memory()
    server = coordinator(own, transport, memory, keys=keys)
    records = server.run()
    assert len(records) == 2 and server.ledger.cancelled
    told = [line for line in server.said if "a sum is left out: its ciphertexts cancel each other" in line]
    assert told and all(line.startswith("round ") for line in told)
    assert any("its ciphertexts cancelled each other" in note for note in deferred_notes(own, server.ledger))
    again = coordinator(own, transport, memory, keys=keys)  # the checkpoint can be gone on from
    assert again.run() == records and again.ledger.cancelled == server.ledger.cancelled


class Opposing:
    """A scheme in which every second client seals the negative of what the one before it sealed."""

    opened_by = "clients"

    def __init__(self, scheme):
        self.scheme, self.name, self.before = scheme, scheme.name, None

    def adder(self):
        return self.scheme.adder()

    def client_key(self):
        return self

    def seal(self, vector):
        sealed = self.scheme.client_key().seal(vector) if self.before is None else self.before
        self.before = sealed if self.before is None else None
        return sealed if self.before else negated(self.scheme, sealed)

    def open(self, data):
        return self.scheme.client_key().open(data)


@pytest.mark.parametrize(
    ("method", "scheme"),
    [
        ({"mode": "paper", "clusters": 1}, {}),
        ({"mode": "paper", "hide_assignments": True}, {"updates": "ckks"}),
    ],
)
def test_a_simulation_goes_on_where_terms_cancel_and_its_notes_name_the_rounds(method, scheme):
    how = {"participation": 1.0, "rounds": 2, "data": {"clients": 4}}
    own = experiment(**how, method=method, scheme={"kind": "bfv", "min_cluster": 1, **scheme})
    setup, result = simulated(own, scheme=Opposing(make_scheme("bfv", clients=4)))
    assert len(result.rounds) == 2 and result.mean_accuracy > 0
    *others, note = deferred_notes(own, setup.world.ledger)
    assert not others  # a sum that cancels is not told to be held back for being small
    assert note.startswith("round 1, round 2, the criteria after the last round: a sum was left out")


def test_a_clustering_session_whose_sum_cancels_is_held_again_and_the_run_says_why_it_has_no_clusters():
    own = experiment(
        participation=1.0, rounds=2, data={"clients": 8}, method={"mode": "sketch"}, scheme={"kind": "bfv"}
    )
    setup, result = simulated(own, scheme=Opposing(make_scheme("bfv", clients=8)))
    assert len(result.rounds) == 2 and result.mean_accuracy > 0
    (note,) = deferred_notes(own, setup.world.ledger)
    assert note.startswith("round 1, round 2: a sum was left out, because its ciphertexts cancelled")
    (note,) = setup.world.notes  # eight clients are not too few
    assert note.startswith("no clusters: no clustering session came to its end") and "too few" not in note
