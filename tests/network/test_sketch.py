"""A clustering session on a network: all nodes in it, and what happens if one is lost in the middle."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from flameche.crypto.keyfile import read_secret
from flameche.crypto.plain import Plain
from flameche.crypto.registry import make_scheme
from flameche.errors import ConfigError
from flameche.experiments.deployment import node_setup
from flameche.flower.results import run_summary
from flameche.network.message import Message, NoReply, RejectedMessage, bytes_array
from flameche.network.node import Node
from flameche.network.node_storage import NodeStorage
from flameche.network.replay import Replay, question_id
from flameche.network.replica import RemoteExchange
from flameche.privacy.guard import Guard
from flameche.protocol.ledger import Ledger
from tests.network.in_process import coordinator, experiment, federation, own_data, setup_of, simulated
from tests.network.test_replica import keys_for

GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]


def eight(scheme="bfv", **tables):
    data = {"clients": 8, "groups": 2, "per_label": 10}
    method = {"mode": "sketch"}
    return experiment(scheme={"kind": scheme}, data=data, method=method, participation=0.5, **tables)


def served(own, tmp_path, meddle=None):
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, 0, keys)
    transport.meddle = meddle
    server = coordinator(own, transport, keys=keys)
    return server, server.run()


@pytest.mark.parametrize(
    ("scheme", "mode"), [("bfv", "sketch"), ("secagg", "sketch"), ("bfv", "paper"), ("secagg", "paper")]
)
def test_the_server_logs_who_is_in_which_opened_sum_as_the_simulator_does(scheme, mode, tmp_path):
    own = experiment(
        scheme={"kind": scheme}, data={"clients": 8, "groups": 2, "per_label": 10},
        method={"mode": mode}, participation=1.0,
    )  # fmt: skip
    server, _ = served(own, tmp_path)
    setup, _ = simulated(own)
    there, here = server.ledger.openings, setup.world.ledger.openings
    assert there and {each.round for each in there} <= {1, 2, 3, 4}
    assert set(map(told, there)) == set(map(told, here))
    found = run_summary(own, 0, False, server)
    assert found["leakage"]["client"]["sums"] == len(there)
    assert found["leakage"]["server"]["sums"] == (len(there) if scheme == "secagg" else 0)


def told(opening):
    return opening.what, opening.clients, opening.numbers, opening.kind, opening.changed


def test_what_a_node_says_of_opened_sums_is_looked_at_before_it_is_believed(tmp_path):
    def meddle(number, message, reply):
        if number == 2 and getattr(reply, "head", {}).get("what") == "done" and reply.head["said"]["opened"]:
            reply.head["said"]["opened"][0]["clients"] = [99]
        return reply

    server, _ = served(eight(), tmp_path, meddle)
    assert any("node 2" in line and "said" in line for line in server.said)
    assert all(max(each.clients) < 8 for each in server.ledger.openings)


@pytest.mark.parametrize("scheme", ["bfv", "secagg"])
def test_all_nodes_are_in_the_session_and_a_share_trains_afterwards(scheme, tmp_path):
    server, records = served(eight(scheme), tmp_path)
    assert [len(record["participants"]) for record in records] == [8, 4, 4]
    assert adjusted_rand_score(GROUPS, server.state.outcome["final"]) == 1.0


def test_a_node_that_is_lost_in_the_session_costs_it_and_all_of_them_hold_it_again(tmp_path):
    lost = []

    def meddle(number, message, reply):
        if number == 3 and message.head["what"] == "round" and message.head["stage"] == 2 and not lost:
            lost.append(message.head["round"])
            return NoReply("the line is cut")
        return reply

    server, records = served(eight(), tmp_path, meddle)
    assert lost == [1] and records[0]["assignment"] == [-1] * 8
    assert len(records[1]["participants"]) == 8 and len(records[2]["participants"]) == 4
    assert adjusted_rand_score(GROUPS, server.state.outcome["final"]) == 1.0


@pytest.mark.parametrize("scheme", ["plain", "bfv"])
@pytest.mark.parametrize("stage", [1, 3, 4])
def test_a_node_that_is_cut_off_gives_no_term_away(stage, scheme, tmp_path):
    """Subtract sums that left the server, of a session without a node and of the same session with it."""
    lost, terms, sums = [], [], {}

    def meddle(number, message, reply):
        sums.update({a.tobytes(): None for name, a in message.arrays.items() if name.startswith("answer/")
                     and name.endswith("/0")})  # fmt: skip
        if not isinstance(reply, NoReply) and number == 3 and "ask/sealed" in reply.arrays:
            terms.append(reply.arrays["ask/sealed"].tobytes())
        if number == 3 and message.head["what"] == "round" and message.head["stage"] == stage and not lost:
            lost.append(reply.head["said"]["kind"])
            return NoReply("the line is cut")
        return reply

    server, records = served(eight(scheme), tmp_path, meddle)
    key = (read_secret(tmp_path / "keys" / "client.key") if scheme == "bfv" else Plain()).client_key()
    own, opened = [key.open(term) for term in terms], [key.open(total) for total in sums]
    assert lost == ["exchange"] and len(own) >= 4 <= len(opened)
    for one in opened:
        for other in opened:
            if len(one) == len(other) and one is not other:
                gap = one - other
                assert not any(len(t) == len(gap) and np.allclose(gap, t, atol=1e-3) for t in own)
    assert records[0]["assignment"] == [-1] * 8 and len(records[1]["participants"]) == 8
    assert any("over fewer clients than agreed on is not opened" in line for line in server.said)
    assert adjusted_rand_score(GROUPS, server.state.outcome["final"]) == 1.0


@pytest.mark.parametrize("scheme", [Plain(), make_scheme("bfv", clients=8)], ids=["plain", "bfv"])
def test_a_node_opens_no_sum_of_fewer_clients_than_agreed_on(scheme):
    clients, key, adder = np.arange(3), scheme.client_key(), scheme.adder()

    def heard(count):
        total = adder.add(adder.load(key.seal(np.full(4, 0.5))) for _ in range(count)).to_bytes()
        about = {"kind": "exchange", "clients": clients.tolist()}
        answer = Message({"kind": "exchange", "asked": question_id(about)}, {"0": bytes_array(total)})
        exchange = RemoteExchange(Replay(0, [answer]), scheme, Guard(3, 1), Ledger(3))
        return exchange.sums("means", np.full((3, 4), 0.5), clients, np.zeros(3, np.int64), 1)

    np.testing.assert_allclose(heard(3), [[1.5] * 4], atol=1e-3)
    for count in (2, 4):
        with pytest.raises(RejectedMessage, match=f"a sum of {count} clients' terms, expected 3"):
            heard(count)


def test_no_server_makes_a_node_draw_noise_again(tmp_path):
    own, drawn = eight("secagg", privacy={"epsilon": 1.0}), []
    once = node_setup(own, 0, 0, lambda: own_data(own.data, 0, 0))

    def metadata():
        drawn.append(once.metadata())
        return drawn[-1]

    for instance in ("a", "b", "c", ""):  # each in a process of its own
        node = Node(replace(once, metadata=metadata), NodeStorage(tmp_path))
        node.handle(Message({"what": "hello", "instance": instance}))
        assert len(drawn) == 1 and (node._metadata().phi == drawn[0].phi).all()
    exact = Node(replace(once, metadata=metadata, noise=0.0), NodeStorage(tmp_path / "exact"))
    for instance in ("a", "b"):  # of a run that begins anew, the data may be others
        exact.handle(Message({"what": "hello", "instance": instance}))
    assert len(drawn) == 3


def test_nodes_add_noise_by_themselves_and_keep_it(tmp_path):
    own = eight("secagg", privacy={"epsilon": 100.0})
    server, _ = served(own, tmp_path)
    assert adjusted_rand_score(GROUPS, server.state.outcome["final"]) == 1.0
    setup_of.cache_clear()  # a process of its own, later
    for number in range(8):
        mine, other = (
            Node(setup_of(own, 0, number, None), NodeStorage(tmp_path / f"{s}{number}"))
            for s in ("site", "new")
        )
        with np.load(tmp_path / f"site{number}" / "metadata.npz") as held:
            sent = held["phi"]
        assert sent.shape == (1, 10, 16) and (mine._metadata().phi == sent).all()
        anew = other._metadata().phi  # the same data and seed, other noise
        assert np.isclose(anew, sent).mean() < 0.01 and np.abs(anew - sent).max() < 1


def test_noise_from_the_seed_is_no_thing_for_a_network(tmp_path):
    with pytest.raises(ConfigError, match="every node knows the seed"):
        served(eight("secagg", privacy={"epsilon": 4.0, "noise": "seeded"}), tmp_path)
