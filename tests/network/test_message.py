"""What passes between nodes and server: never metadata in the clear, and as much as the ledger says."""

import json

import numpy as np
import pytest

from flameche.crypto.box import Box
from flameche.errors import SealError
from flameche.network.message import Message, RejectedMessage
from flameche.network.replay import SoloReplay
from tests.network.in_process import coordinator, experiment, federation
from tests.network.test_replica import keys_for


def pieces(array):
    """List what would show an array in others: three of its numbers in a row, as written in either width."""
    flat = array.ravel()
    starts = [at for at in range(len(flat) - 2) if np.count_nonzero(flat[at : at + 3]) == 3]
    for kind in ("<f8", "<f4"):
        for at in starts[:: max(1, len(starts) // 20)]:
            yield flat[at : at + 3].astype(kind).tobytes()


@pytest.mark.parametrize("scheme", ["plain", "bfv", "ckks", "paillier", "secagg"])
def test_metadata_never_cross_in_the_clear(scheme, tmp_path):
    how = {"kind": scheme, "min_cluster": 1, **({"key_bits": 2048} if scheme == "paillier" else {})}
    own = experiment(scheme=how, rounds=1 if scheme == "paillier" else 2)
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, keys=keys)
    coordinator(own, transport, keys=keys).run()
    wire = b"".join(
        array.tobytes()
        for _, message, reply in transport.seen
        for one in (message, reply)
        for array in one.arrays.values()
    )
    shown = 0
    for number in range(own.data.clients):
        node = transport.make(number)
        phi = node._metadata().phi[0]
        nothing = Message({"what": "evaluate"})
        cohort = node._restored_method(node._world(SoloReplay(number), nothing, nothing), nothing).cohort
        prepared = cohort.phi[number]
        shown += any(piece in wire for piece in pieces(phi))
        shown += any(piece in wire for piece in pieces(prepared * cohort.weight[number][:, None]))
    assert shown >= own.data.clients // 2 if scheme == "plain" else shown == 0


@pytest.mark.parametrize("scheme", ["bfv", "secagg"])
def test_the_ledger_counts_every_byte(scheme, tmp_path):
    own = experiment(scheme={"kind": scheme, "min_cluster": 1}, rounds=2)
    keys = keys_for(own, tmp_path / "keys")
    transport = federation(own, tmp_path, keys=keys)
    server = coordinator(own, transport, keys=keys)
    server.run()

    def size(message):
        return len(json.dumps(message.head)) + sum(array.nbytes for array in message.arrays.values())

    down, up = np.zeros(own.data.clients), np.zeros(own.data.clients)
    for number, message, reply in transport.seen:
        if message.head["what"] != "hello":
            down[number] += size(message)
            up[number] += size(reply)
    np.testing.assert_array_equal(server.ledger.per_client("down"), down)
    np.testing.assert_array_equal(server.ledger.per_client("up"), up)
    kinds = server.ledger.summary()["up"]
    if scheme == "bfv":  # sealed metadata are sent once
        sealed = [
            array.nbytes
            for _, _, reply in transport.seen
            for name, array in reply.arrays.items()
            if name.startswith("give/") and name.endswith("sealed")
        ]
        assert kinds["metadata"] == sum(sealed) and len(sealed) <= own.data.clients


def test_what_clients_leave_with_the_server_opens_under_their_key_and_for_its_round_alone():
    box, other = Box(b"one"), Box(b"another")
    sealed = box.seal(b"state", b"round 1")
    assert box.open(sealed, b"round 1") == b"state" and b"state" not in sealed
    for wrong in (
        lambda: other.open(sealed, b"round 1"),
        lambda: box.open(sealed, b"round 2"),
        lambda: box.open(sealed[:-1], b"round 1"),
        lambda: box.open(b"", b"round 1"),
    ):
        with pytest.raises(SealError):
            wrong()
    assert "one" not in repr(box)


def test_files_of_a_node_are_its_owners_alone(tmp_path):
    own = experiment(scheme={"kind": "secagg", "min_cluster": 1}, rounds=2)
    transport = federation(own, tmp_path)
    coordinator(own, transport).run()
    site = tmp_path / "site0"
    assert site.stat().st_mode & 0o777 == 0o700
    files = list(site.iterdir())
    assert {"metadata.npz", "round.npz"} <= {file.name for file in files}
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


@pytest.mark.filterwarnings("ignore:Reading")  # numpy tries an old format where a header is damaged
def test_a_damaged_message_is_refused_or_read_and_nothing_else():
    data = Message({"what": "round"}, {"a": np.arange(5.0), "b": np.array(["x"])}).to_bytes()
    refused = 0
    for at in range(len(data)):
        for bad in (data[:at] + bytes([data[at] ^ 0x1F]) + data[at + 1 :], data[:at]):
            try:
                Message.from_bytes(bad)
            except RejectedMessage:
                refused += 1
    assert refused > len(data)
