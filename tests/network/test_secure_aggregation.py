"""Sums that are opened hold exactly who was agreed on; what a node says of itself shows no data."""

import threading
from itertools import combinations

import numpy as np
import pytest

from flameche.crypto.secagg.messages import KEY, Kind, pack
from flameche.crypto.secagg.server import SecAggServer
from flameche.crypto.secagg.session import Abort
from flameche.em import spherical
from flameche.network import coordinator as coordinating
from flameche.network.message import Message, NoReply, RejectedMessage, bytes_array
from flameche.network.node_storage import NodeStorage
from flameche.network.replay import SoloReplay
from flameche.network.secure_aggregation import begin_session, session_for, take_step
from flameche.network.server_state import TooFewNodes
from tests.network.in_process import coordinator, experiment, federation

PAPER = {"mode": "paper", "recluster_over": "participants", "tau": 0, "clusters": 1}


def masked(least, method, **tables):
    how = {"kind": "secagg", "min_cluster": least}
    return experiment(scheme=how, method={**PAPER, **method}, **{"participation": 1.0, "rounds": 2, **tables})


@pytest.fixture
def opened(monkeypatch):
    """Every sum of metadata that the server has come to see."""
    totals, real = [], coordinating.run_session

    def watched(question, *given):
        done = real(question, *given)
        if done.total is not None and question["length"] > 100:
            totals.append((given[-1]["round"], done.total))
        return done

    monkeypatch.setattr(coordinating, "run_session", watched)
    return totals


def term(transport, number):
    """A client's own term, as it is masked."""
    node, nothing = transport.make(number), Message({"what": "evaluate"})
    cohort = node._restored_method(node._world(SoloReplay(number), nothing, nothing), nothing).cohort
    own = spherical.statistics(cohort.phi[[number]], cohort.weight[[number]])[0]
    return node.setup.scheme.codec.encode(own)


def holders(transport, totals):
    """How often each client is in each of the sums [m C], read off their numbers."""
    terms = np.stack([term(transport, i) for i in transport.numbers]).astype(float)
    rows = np.concatenate([np.reshape(total, (-1, terms.shape[1])) for total in totals]).astype(float)
    often, *_ = np.linalg.lstsq(terms.T, rows.T, rcond=None)
    whole = np.round(often.T)
    np.testing.assert_allclose(whole @ terms, rows, atol=1e-3 * np.abs(terms).max())
    return whole[np.abs(whole).any(axis=1)]


def assert_nobody_shows(own, transport, totals, least):
    sums = holders(transport, [total for r, total in totals if r <= own.rounds])
    both = [sign * a + b for a, b in combinations(sums, 2) for sign in (1, -1)]
    shown = [int(np.count_nonzero(row)) for row in [*sums, *both]]
    assert not [count for count in shown if 0 < count < least], shown
    return sums


def dropping(step, when):
    def meddle(number, message, reply):
        head = message.head
        return NoReply("killed") if head.get("step") == step and when(number, head) else reply

    return meddle


def test_two_of_three_newcomers_are_lost_and_the_third_does_not_show(tmp_path, opened):
    own = masked(3, {"m_step": "seen"}, rounds=3, data={"clients": 7})  # five may open what seven began
    transport = federation(own, tmp_path)
    transport.online -= {4, 5, 6}
    drop = dropping("mask", lambda n, head: head["round"] == 2 and head["attempt"] == 1 and n > 4)

    def meddle(number, message, reply):
        if message.head["what"] == "evaluate":
            transport.online = set(transport.numbers)
        return drop(number, message, reply)

    transport.meddle = meddle
    records = coordinator(own, transport).run()
    sums = assert_nobody_shows(own, transport, opened, 3)
    assert sorted(records[1]["lost"]) == ["5", "6"] and len(sums) == 2  # four first, three later


def test_a_node_that_is_lost_in_a_later_clusters_session_is_in_no_difference(tmp_path, opened):
    own = masked(2, {"m_step": "participants", "clusters": 2}, data={"clients": 8})  # four in each
    transport, hit = federation(own, tmp_path), []

    def last(number, head):
        if head["round"] == 2 and head["stage"] == 2 and not hit:
            hit.append(number)
        return hit[:1] == [number] and head["round"] == 2

    transport.meddle = dropping("mask", last)
    records = coordinator(own, transport).run()
    assert hit and list(records[1]["lost"]) == [str(hit[0])]
    assert_nobody_shows(own, transport, opened, 2)


def test_losses_in_two_attempts_are_in_no_difference(tmp_path, opened):
    own = masked(3, {"m_step": "participants"}, rounds=1)
    transport = federation(own, tmp_path)
    transport.meddle = dropping("mask", lambda n, head: (head["attempt"], n) in ((1, 4), (2, 5)))
    (record,) = coordinator(own, transport).run()
    assert sorted(record["lost"]) == ["4", "5"]
    sums = assert_nobody_shows(own, transport, opened, 3)
    assert sums.tolist()[0] == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("gone", ["before the shares", "before its vector"])
def test_a_client_opens_no_sum_of_fewer_than_agreed_on_whatever_the_server_says(gone, tmp_path):
    question = {"clients": [0, 1, 2, 3, 4], "label": "x", "length": 2}
    nonce = "00" * 16
    sites = [NodeStorage(tmp_path / str(n)) for n in range(5)]
    sent = {
        n: begin_session(site, nonce, question, {"vector": np.full(2, n)}, n)["message"].tobytes()
        for n, site in enumerate(sites)
    }
    server = SecAggServer(session_for(question, nonce))

    def step(name, messages):
        return {
            n: take_step(sites[n], Message({"session": nonce, "step": name}, {"message": bytes_array(data)}))[
                "message"
            ].tobytes()
            for n, data in messages.items()
        }

    if gone == "before the shares":
        del sent[4]
    shares = step("share", server.roster(sent))
    vectors = step("mask", server.route(shares))
    vectors.pop(4, None)
    with pytest.raises(Abort, match="fewer clients than agreed on"):
        step("unmask", server.request(vectors))
    with pytest.raises(RejectedMessage, match="is over or was repeated"):
        step("unmask", {0: b""})


def test_a_kept_step_is_taken_by_one_of_two_at_once(tmp_path):
    site, taken = NodeStorage(tmp_path), []
    for _ in range(200):
        site.write("session.x", b"1" * 20000)
        both = threading.Barrier(2)

        def take(both=both):
            both.wait()
            taken.append(site.read_once("session.x"))

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(data is not None for data in taken) == 200
    assert not list(tmp_path.glob(".*")) and all(data in (None, b"1" * 20000) for data in taken)


def test_a_value_beyond_the_bound_is_not_told(tmp_path):
    own = experiment(scheme={"kind": "secagg", "min_cluster": 1, "bound": 0.5}, method=PAPER, rounds=1)
    transport = federation(own, tmp_path)
    server = coordinator(own, transport)
    with pytest.raises(TooFewNodes, match=r"exceed scheme\.bound") as problem:
        server.run()
    words = [
        str(problem.value),
        *server.said,
        *(r.reason for *_, r in transport.seen if isinstance(r, NoReply)),
    ]
    for number in transport.numbers:
        largest = np.abs(transport.make(number)._metadata().phi).max()
        assert not any(f"{largest:.3g}"[:5] in line for line in words)


def cut(reply):
    return Message(reply.head, {n: a[:-1] if n.endswith("message") else a for n, a in reply.arrays.items()})


def without(reply):
    return Message(reply.head, {n: a for n, a in reply.arrays.items() if not n.endswith("message")})


def useless(reply, message):
    session = session_for(reply.head["said"], message.head["nonce"])
    advert = pack(session, Kind.ADVERT, reply.head["said"]["clients"].index(1), bytes(2 * KEY))
    return Message(reply.head, {**reply.arrays, "ask/message": bytes_array(advert)})


FAULTS = {
    "no advert": ("advert", lambda reply, message: without(reply)),
    "a useless key": ("advert", useless),
    "a cut advert": ("advert", lambda reply, message: cut(reply)),
    "no shares": ("share", lambda reply, message: without(reply)),
    "cut shares": ("share", lambda reply, message: cut(reply)),
    "numbers, not bytes": ("mask", lambda reply, message: Message(reply.head, {"message": np.ones(9)})),
    "a cut vector": ("mask", lambda reply, message: cut(reply)),
    "something else": ("mask", lambda reply, message: Message({**reply.head, "what": "lack"})),
    "a cut reveal": ("unmask", lambda reply, message: cut(reply)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_session_has_a_culprit(fault, tmp_path, opened):
    step, how = FAULTS[fault]
    own = masked(1, {"m_step": "participants"}, rounds=1, data={"clients": 4, "groups": 1})
    transport = federation(own, tmp_path)

    def meddle(number, message, reply):
        if number != 1 or not isinstance(reply, Message) or message.head.get("attempt") != 1:
            return reply
        first = step == "advert" and "ask/message" in reply.arrays
        return how(reply, message) if first or message.head.get("step") == step else reply

    transport.meddle = meddle
    (record,) = coordinator(own, transport).run()
    assert list(record["lost"]) == ["1"]
    assert record["participants"] == ([0, 1, 2, 3] if step == "unmask" else [0, 2, 3])
    assert len(opened) > 0 and transport.exchanges < 60
