"""The transport's answers to a Grid that misbehaves as the real one would only after minutes."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'flameche[flower]'")

from flwr.app import ArrayRecord, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity

from flameche.errors import DataError, FlamecheError
from flameche.flower.client_app import handle
from flameche.flower.transport import GridTransport, pack, unpack
from flameche.network.message import Message, NoReply


@pytest.fixture(autouse=True)
def _as_in_a_run(monkeypatch):
    """Tell Flower who we are, which it does itself before it calls an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class FakeGrid:
    """Answers each message as it is told; time passes only when somebody sleeps."""

    def __init__(self, answers):
        self.answers, self.time, self.pushed, self.looks = answers, 0.0, [], []

    def get_node_ids(self):
        return [7, 3, 5]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            address = message.metadata.dst_node_id
            if self.answers[address] == "unknown":
                ids.append(None)
                continue
            message.metadata.__dict__["_message_id"] = f"m{address}"
            self.pushed.append(message)
            ids.append(f"m{address}")
        return ids

    def pull_messages(self, ids):
        self.looks.append(self.time)
        found = []
        for message in self.pushed:
            when, answer = self.answers[message.metadata.dst_node_id]
            if message.metadata.message_id in ids and self.time >= when:
                found.append(answer(message))
        return found

    def transport(self):
        def sleep(seconds):
            self.time += seconds

        return GridTransport(self, clock=lambda: self.time, sleep=sleep)


def echo(message):
    return FlowerMessage(
        pack(Message({"got": unpack(message.content).head}, {"ask/x": np.ones(3)})), reply_to=message
    )


def exchange(answers, timeout=60.0):
    grid = FakeGrid(answers)
    transport = grid.transport()
    parcels = {a: Message({"what": "round", "round": 2, "to": a}, {"model/p": np.ones(5)}) for a in answers}
    return grid, transport, transport.exchange(parcels, timeout)


def test_each_node_gets_its_own_message_and_answers_it():
    grid, transport, found = exchange({3: (0.0, echo), 5: (2.0, echo)})
    assert {a: p.head["got"]["to"] for a, p in found.items()} == {3: 3, 5: 5}
    assert [p.arrays["ask/x"].tolist() for p in found.values()] == [[1, 1, 1]] * 2
    assert transport.nodes() == [3, 5, 7]
    assert [m.metadata.message_type for m in grid.pushed] == ["train", "train"]
    assert grid.looks[1] - grid.looks[0] < 0.1


def test_an_error_is_a_loss_at_once_even_if_the_link_itself_sends_it():
    def refused(message):
        reply = FlowerMessage(Error(2, "node 3: its data\nsecret second line"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    grid, _, found = exchange({3: (0.0, refused)})
    assert found == {3: NoReply("node 3: its data")}
    assert grid.time == 0.0


@pytest.mark.parametrize(
    ("problem", "settings", "site"),
    [
        (DataError("node 2: y is empty"), {"partition-id": 2}, 2),
        (DataError("node 2: y is empty"), {"partition-id": 0}, 0),
        (FlamecheError("node 2: y is empty"), {"partition-id": 2}, None),
        (DataError("node 2: y is empty"), {}, None),
        (DataError("node 2: y is empty"), {"partition-id": True}, None),
        (DataError("node 2: y is empty"), {"partition-id": "2"}, None),
        (DataError("node 2: y is empty"), {"partition-id": -1}, None),
    ],
)
def test_which_site_has_to_correct_something_is_told_apart_from_what_may_pass(
    problem, settings, site, monkeypatch
):
    context = SimpleNamespace(node_config=settings)

    def failing(parcel, context):
        raise problem

    monkeypatch.setattr("flameche.flower.client_app.answer", failing)
    _, _, found = exchange({3: (0.0, lambda message: handle(message, context))})
    assert found == {3: NoReply("node 2: y is empty", site)}


def test_what_an_app_raised_is_told_in_its_own_words():
    raised = "<class 'flameche.errors.FlamecheError'>:<'this site has not agreed to that app'>"
    _, _, found = exchange({3: (0.0, lambda m: FlowerMessage(Error(2, raised), reply_to=m))})
    assert found == {3: NoReply("this site has not agreed to that app")}


@pytest.mark.parametrize(("code", "why"), [(5, "offline"), (3, "expired"), (8, "died"), (0, "code 0")])
def test_flowers_own_errors_are_told_in_words(code, why):
    _, _, found = exchange({3: (0.0, lambda m: FlowerMessage(Error(code), reply_to=m))})
    assert why in found[3].reason


def test_silence_is_a_loss_after_the_time_and_looks_become_rarer():
    grid, _, found = exchange({3: (0.0, echo), 5: (1e9, echo)}, timeout=60.0)
    assert found[5] == NoReply("no reply within 60 s") and isinstance(found[3], Message)
    assert grid.time == pytest.approx(60.0) and len(grid.looks) < 80


def test_garbage_strangers_and_unknown_nodes_are_losses():
    def garbage(message):
        return FlowerMessage(RecordDict({"x": ArrayRecord([np.ones(1)])}), reply_to=message)

    def stranger(message):
        reply = echo(message)
        reply.metadata.__dict__["_src_node_id"] = 99
        return reply

    _, _, found = exchange({3: (0.0, garbage), 5: (0.0, stranger), 7: "unknown"})
    assert "cannot be used" in found[3].reason
    assert found[5] == NoReply("the reply came from another node")
    assert "not registered" in found[7].reason


def test_answers_to_nothing_are_ignored():
    def twice(message):
        reply = echo(message)
        reply.metadata.__dict__["_reply_to_message_id"] = "m42"
        return reply

    _, _, found = exchange({3: (0.0, twice)}, timeout=5.0)
    assert found == {3: NoReply("no reply within 5 s")}


def test_nothing_to_send_asks_nobody():
    grid, _, found = exchange({})
    assert found == {} and grid.looks == []


def test_a_refused_batch_is_lost():
    grid = FakeGrid({3: (0.0, echo)})
    grid.push_messages = lambda messages: []
    found = grid.transport().exchange({3: Message({})}, 5.0)
    assert isinstance(found[3], NoReply)


def test_a_message_says_what_it_is_for():
    kinds = {"hello": "query", "evaluate": "evaluate", "step": "train", "round": "train"}
    for what, kind in kinds.items():
        grid = FakeGrid({3: (0.0, echo)})
        grid.transport().exchange({3: Message({"what": what, "round": 4})}, 5.0)
        assert grid.pushed[0].metadata.message_type == kind and grid.pushed[0].metadata.group_id == "4"
