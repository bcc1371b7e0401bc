import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flameche.crypto.codec import FixedPoint
from flameche.crypto.secagg import Abort, SecAggClient, SecAggServer, Session, aggregate
from flameche.crypto.secagg.messages import DROPPED, HEADER, SURVIVED, Kind, pack, pack_table
from flameche.errors import BadInput, FlamecheError, OverflowBudget, SealError

STEPS = ("advertise", "share", "mask", "unmask")


class Cohort:
    """Clients and server of one session, driven step by step; every message stays in view."""

    def __init__(self, n=6, length=4, **settings):
        self.session = Session.open(n, length, **settings)
        self.x = np.random.default_rng(n).integers(-1000, 1000, (n, length))
        self.clients = [SecAggClient(self.session, i) for i in range(n)]
        self.server = SecAggServer(self.session)
        self.up, self.down = {}, {}

    def client(self, step, i):
        if step == "advertise":
            return self.clients[i].advertise()
        given = (self.down[step][i], self.x[i]) if step == "mask" else (self.down[step][i],)
        return getattr(self.clients[i], step)(*given)

    def until(self, last, gone=()):
        """Run all client steps up to and including `last`, and the server's between them."""
        for step, serve in zip(STEPS, ("roster", "route", "request"), strict=False):
            if step not in self.up:
                there = self.down.get(step, dict.fromkeys(range(self.session.clients)))
                self.up[step] = {i: self.client(step, i) for i in there if i not in gone}
            if step == last:
                return self
            after = STEPS[STEPS.index(step) + 1]
            if after not in self.down:
                self.down[after] = getattr(self.server, serve)(self.up[step])
        if "unmask" not in self.up:
            self.up["unmask"] = {i: self.client("unmask", i) for i in self.down["unmask"] if i not in gone}
        return self


def outcome(n, fates, **settings):
    """Drop each client at its fate (4: never); compare the exact sum or the Abort with what must come."""
    x = np.random.default_rng(n).integers(-(10**6), 10**6, (n, 2))
    dropouts = {step: [i for i in range(n) if fates[i] == s] for s, step in enumerate(STEPS)}
    threshold = settings.get("threshold") or 2 * n // 3 + 1
    enough = sum(fate == 4 for fate in fates) >= threshold
    try:
        total, survivors, _ = aggregate(x, dropouts=dropouts, **settings)
    except Abort:
        assert not enough
        return
    assert enough and survivors == [i for i in range(n) if fates[i] >= 3]
    assert np.array_equal(total, x[survivors].sum(0))


# the sum


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(0, 20), st.sampled_from([32, 64]), st.data())
def test_the_sum_is_the_integer_sum(n, length, bits, data):
    bound = (2 ** (bits - 1) - 1) // n
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = rng.integers(-bound, bound, (n, length), endpoint=True)
    total, survivors, _ = aggregate(x, word_bits=bits, label="round 7 / cluster 2")
    assert np.array_equal(total, x.sum(0)) and survivors == list(range(n))
    assert total.dtype == np.int64


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [32, 64])
def test_the_largest_values_add_up_and_one_more_is_refused(bits, sign):
    most = (2 ** (bits - 1) - 1) // 3
    assert aggregate(np.full((3, 1), sign * most), word_bits=bits)[0].tolist() == [3 * sign * most]
    with pytest.raises(OverflowBudget, match=f"exceeds {most}"):
        aggregate(np.full((3, 1), sign * (most + 1)), word_bits=bits)


def test_sums_of_a_codecs_integers_decode_to_sums():
    codec = FixedPoint.fitting(1.0, 5, 32)
    values = np.random.default_rng(0).uniform(-1, 1, (5, 40))
    session = Session.fitting(codec, 5, 40)
    total, _, costs = aggregate(np.stack([codec.encode(row) for row in values]), word_bits=session.word_bits)
    assert np.abs(codec.decode(total) - values.sum(0)).max() <= 5 * codec.tolerance
    assert session.word_bits == 32 and costs.up.max() < 5 * 41 * 4 + 1000


def test_everyone_may_drop_out_anywhere_among_three_and_four():
    for n in (3, 4):
        for fates in itertools.product(range(5), repeat=n):
            outcome(n, fates)


def test_hundreds_of_random_schedules_end_in_the_exact_sum_or_an_abort():
    rng = np.random.default_rng(7)
    for _ in range(400):
        n = int(rng.integers(5, 9))
        threshold = int(rng.integers(n // 2 + 1, n + 1))
        fates = np.where(rng.random(n) < rng.uniform(0.5, 1), 4, rng.integers(0, 4, n))
        outcome(n, fates.tolist(), threshold=threshold)


def test_sparse_schedules_end_in_the_exact_sum_or_an_abort():
    rng, ends = np.random.default_rng(8), {True: 0, False: 0}
    for _ in range(250):
        n = int(rng.integers(8, 13))
        x = rng.integers(-99, 99, (n, 2))
        fates = np.where(rng.random(n) < rng.uniform(0.6, 1), 4, rng.integers(0, 4, n))
        dropouts = {step: np.flatnonzero(fates == s).tolist() for s, step in enumerate(STEPS)}
        try:
            total, survivors, _ = aggregate(x, neighbours=4, threshold=3, dropouts=dropouts)
        except Abort:
            ends[False] += 1
            assert (fates < 4).sum() > 2  # two cannot break a neighbourhood of five
            continue
        ends[True] += 1
        assert survivors == np.flatnonzero(fates >= 3).tolist() and np.array_equal(total, x[survivors].sum(0))
    assert min(ends.values()) > 20


@pytest.mark.parametrize("step", STEPS)
def test_of_forty_clients_a_third_may_drop_out_at_any_step_and_no_more(step):
    x = np.random.default_rng(0).integers(-(2**40), 2**40, (40, 3))
    total, survivors, _ = aggregate(x, neighbours=39, dropouts={step: range(13)})
    assert survivors == list(range(0 if step == "unmask" else 13, 40))
    assert np.array_equal(total, x[survivors].sum(0))
    with pytest.raises(Abort, match=r"26 .* the threshold is 27"):
        aggregate(x, neighbours=39, dropouts={step: range(14)})


def test_a_sparse_graph_of_sixty_survives_dropouts_at_every_step():
    x = np.random.default_rng(0).integers(-(2**40), 2**40, (60, 7))
    total, survivors, costs = aggregate(
        x, dropouts={"advertise": [3], "share": [10], "mask": [20, 21], "unmask": [30, 31]}
    )
    assert survivors == sorted(set(range(60)) - {3, 10, 20, 21}) and np.array_equal(
        total, x[survivors].sum(0)
    )
    full = aggregate(x, neighbours=59)[2]
    assert 2 * costs.up.max() < full.up.max() and 2 * costs.down.max() < full.down.max()


def test_costs_are_the_bytes_that_crossed():
    cohort = Cohort(5, 8)
    cohort.until("unmask")
    costs = aggregate(cohort.x)[2]
    sizes = [sum(len(messages[i]) for messages in cohort.up.values()) for i in range(5)]
    assert costs.up.tolist() == sizes and costs.client_seconds > 0 < costs.server_seconds
    got = [sum(len(messages[i]) for messages in cohort.down.values()) for i in range(5)]
    assert (costs.down - got).tolist() == [len(cohort.session.to_bytes())] * 5


# what the server sees


def words(message):
    return np.frombuffer(message[HEADER.size :], "<u8")[:-1].view(np.int64)


def test_no_input_is_ever_sent_unmasked():
    n, length = 5, 500
    first, second = (Cohort(n, length).until("mask").up["mask"] for _ in range(2))
    x = Cohort(n, length).x
    for i in range(n):
        assert (words(first[i]) != x[i]).all() and (words(first[i]) != words(second[i])).all()
        assert abs(np.unpackbits(np.frombuffer(first[i][HEADER.size :], np.uint8)).mean() - 0.5) < 0.02
    for some in itertools.chain.from_iterable(itertools.combinations(range(n), r) for r in range(1, n + 1)):
        blind = np.sum([words(first[i]) for i in some], axis=0)
        assert (blind != x[list(some)].sum(0)).all()  # the self masks stand even when pairwise masks cancel


def test_the_server_holds_no_secret_before_unmasking_and_nothing_after():
    cohort = Cohort().until("mask")
    secrets = [
        s for c in cohort.clients for s in [share for both in c._held.values() for share in both if share]
    ]
    cohort.until("unmask")
    before = pickle.dumps(cohort.server)
    assert secrets and not any(secret in before for secret in secrets)
    cohort.server.total(cohort.up["unmask"])
    assert not cohort.server._keys and not cohort.server._commitments and not cohort.server._sum.size


def test_clients_forget_their_secrets_and_never_show_them():
    cohort = Cohort().until("unmask")
    client = cohort.clients[3]
    assert not {"_seed", "_mask_key", "_seal_key", "_boxes", "_held"} & set(vars(client))
    assert repr(client) == "<SecAggClient 3 …>"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="holds secrets"):
            leak(SecAggClient(cohort.session, 3))


# what a client refuses


def test_steps_are_taken_in_order_and_once():
    cohort = Cohort()
    fresh = cohort.clients[0]
    for step, given_ in [("share", (b"",)), ("mask", (b"", cohort.x[0])), ("unmask", (b"",))]:
        with pytest.raises(Abort, match=f"refuses to {step}: its next step is advertise"):
            getattr(fresh, step)(*given_)
    cohort.until("unmask")
    for step in STEPS:
        with pytest.raises(Abort, match=f"refuses to {step}: its next step is closed"):
            cohort.client(step, 0)
    for serve in ("roster", "route", "request"):
        with pytest.raises(Abort, match=f"asked for {serve}, but its next step is total"):
            getattr(cohort.server, serve)({})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({0: 1, 1: 1, 2: 1, 3: 1, 4: 0, 5: 0}, "4 of its 6 holders are left, the threshold is 5"),
        ({0: 1, 1: 1, 2: 1, 3: 1, 4: 1}, "exactly those who shared"),
        ({0: 0, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}, "does not fit"),
        ({0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 2}, "unknown flag"),
    ],
    ids=["too few survivors", "one left out", "itself dropped", "unknown flag"],
)
def test_a_client_refuses_to_reveal(asked, why):
    cohort = Cohort().until("mask")
    body = pack_table({i: bytes([flag]) for i, flag in asked.items()})
    with pytest.raises((Abort, SealError), match=why):
        cohort.clients[0].unmask(pack(cohort.session, Kind.REQUEST, 0, body))
    honest = cohort.server.request(cohort.up["mask"])[0]
    with pytest.raises(Abort, match="its next step is closed"):  # and does not come back
        cohort.clients[0].unmask(honest)


def test_a_client_refuses_survivors_that_never_shared():
    cohort = Cohort(7)
    cohort.until("advertise")
    cohort.down["share"] = cohort.server.roster(cohort.up["advertise"])
    cohort.until("mask", gone=[6])
    body = pack_table(dict.fromkeys(range(7), SURVIVED))
    with pytest.raises(Abort, match="exactly those who shared"):
        cohort.clients[0].unmask(pack(cohort.session, Kind.REQUEST, 0, body))


def test_a_client_never_reveals_both_secrets_of_a_peer():
    cohort = Cohort().until("mask")
    twice = pack_table(dict.fromkeys(range(6), SURVIVED)) + pack_table({5: DROPPED})
    with pytest.raises(SealError, match="names client 5 twice"):
        cohort.clients[0].unmask(pack(cohort.session, Kind.REQUEST, 0, twice))
    dropped = pack_table(dict.fromkeys(range(5), SURVIVED) | {5: DROPPED})
    cohort.clients[1].unmask(cohort.server.request(cohort.up["mask"])[1])
    with pytest.raises(Abort, match="its next step is closed"):
        cohort.clients[1].unmask(pack(cohort.session, Kind.REQUEST, 1, dropped))


def test_a_client_refuses_a_thin_roster_strangers_and_repeated_keys():
    def roster(change, why):
        cohort = Cohort(30, neighbours=6)
        cohort.until("advertise")
        around = [j for j in cohort.session.holders[0] if j]
        keys = {j: cohort.up["advertise"][j][HEADER.size :] for j in range(30)}
        rows = change({j: keys[j] for j in around}, keys)
        with pytest.raises((Abort, SealError), match=why):
            cohort.clients[0].share(pack(cohort.session, Kind.ROSTER, 0, pack_table(rows)))

    roster(lambda rows, keys: dict(list(rows.items())[:3]), "4 of its 7 holders are left, the threshold is 5")
    roster(lambda rows, keys: keys, "names itself")
    roster(lambda rows, keys: {j: keys[j] for j in range(1, 30)}, "does not fit")
    roster(lambda rows, keys: dict.fromkeys(rows, keys[1]), "two public keys are the same")
    roster(lambda rows, keys: rows | {min(rows): keys[0]}, "two public keys are the same")
    roster(lambda rows, keys: rows | {min(rows): bytes(32) + keys[1][:32]}, "is not a key")


def test_a_client_refuses_a_thin_inbox_and_altered_shares():
    cohort = Cohort().until("share")
    inbox = cohort.server.route(cohort.up["share"])
    body = inbox[0][HEADER.size :]
    width = len(body) // 5
    with pytest.raises(Abort, match="4 of its 6 holders"):
        cohort.clients[0].mask(pack(cohort.session, Kind.INBOX, 0, body[: 3 * width]), cohort.x[0])
    body = bytearray(inbox[1][HEADER.size :])
    body[2 * width + 20] ^= 1
    with pytest.raises(SealError, match="client 3 sealed to client 1 were altered"):
        cohort.clients[1].mask(pack(cohort.session, Kind.INBOX, 1, bytes(body)), cohort.x[1])


@pytest.mark.parametrize("vector", [np.zeros(3, np.int64), np.zeros(4), np.zeros((4, 1), np.int64)])
def test_a_vector_of_another_shape_or_type_is_refused_and_may_be_corrected(vector):
    cohort = Cohort().until("share")
    inbox = cohort.server.route(cohort.up["share"])
    with pytest.raises(SealError, match=r"client 2 has a vector .*, expected int64\[4\]"):
        cohort.clients[2].mask(inbox[2], vector)
    assert cohort.clients[2].mask(inbox[2], cohort.x[2])


# what the server refuses


@pytest.mark.parametrize("step", STEPS)
def test_a_damaged_message_names_its_client_and_the_rest_go_on_without_it(step):
    serve = dict(zip(STEPS, ("roster", "route", "request", "total"), strict=True))[step]
    cohort = Cohort(6).until(step)
    good = cohort.up[step]
    other = Cohort(6).until(step).up[step]
    kinds = [pack(cohort.session, kind, 2, good[2][HEADER.size :]) for kind in Kind]
    wrong = [message for message in kinds if message != good[2]]
    for bad in [good[2][:-1], good[2] + b"\0", b"", good[2][:10], good[3], other[2], *wrong]:
        with pytest.raises(SealError, match="client 2"):
            getattr(cohort.server, serve)(good | {2: bad})
    for shorter in (b"", good[2][HEADER.size : -1], good[2][HEADER.size :] + b"\0"):
        kind = Kind(2 * STEPS.index(step) + 1)
        with pytest.raises(SealError, match="client 2"):
            getattr(cohort.server, serve)(good | {2: pack(cohort.session, kind, 2, shorter)})
    with pytest.raises(SealError, match="client 17"):
        getattr(cohort.server, serve)(good | {17: good[2]})
    cohort.up[step] = {i: message for i, message in good.items() if i != 2}
    cohort.until("unmask")
    total = cohort.server.total(cohort.up["unmask"])
    assert np.array_equal(total, cohort.x[cohort.server.survivors].sum(0))


def test_a_client_that_dropped_out_does_not_come_back():
    cohort = Cohort().until("share")
    late = cohort.up["share"].pop(2)
    cohort.until("mask")
    inbox = pack(cohort.session, Kind.INBOX, 2, cohort.down["mask"][3][HEADER.size :])
    with pytest.raises(FlamecheError):
        cohort.clients[2].mask(inbox, cohort.x[2])
    with pytest.raises(SealError, match="client 2 sent a message for request"):
        cohort.server.request(cohort.up["mask"] | {2: late})


@pytest.mark.parametrize("where", [0, 32])
def test_useless_and_repeated_public_keys_are_refused(where):
    cohort = Cohort().until("advertise")
    good = cohort.up["advertise"]
    for key, why in [(bytes(32), "protects nothing"), (good[0][-32:], "repeats a public key of client 0")]:
        body = bytearray(good[4][HEADER.size :])
        body[where : where + 32] = key
        with pytest.raises(SealError, match=f"client 4 .*{why}"):
            cohort.server.roster(good | {4: pack(cohort.session, Kind.ADVERT, 4, bytes(body))})


@pytest.mark.parametrize("gone", [(), (5,)], ids=["seed", "mask key"])
def test_wrong_shares_give_no_sum(gone):
    cohort = Cohort(6).until("share")
    cohort.down["mask"] = cohort.server.route(cohort.up["share"])
    cohort.until("unmask", gone=gone)
    lie = bytearray(cohort.up["unmask"][1][HEADER.size :])
    lie[-1] ^= 1  # its share of client 5
    reveals = cohort.up["unmask"] | {1: pack(cohort.session, Kind.REVEAL, 1, bytes(lie))}
    with pytest.raises(Abort, match="client 5"):
        cohort.server.total(reveals)
    with pytest.raises(Abort, match="its next step is closed"):
        cohort.server.total(cohort.up["unmask"])


def test_a_client_that_counts_itself_twice_gives_no_sum():
    cohort = Cohort().until("mask")
    body = np.frombuffer(cohort.up["mask"][2][HEADER.size :], "<u8").copy()
    body[-1] += np.uint64(1)
    cohort.up["mask"][2] = pack(cohort.session, Kind.MASKED, 2, body.tobytes())
    with pytest.raises(Abort, match="counts 7 terms, not 6"):
        cohort.server.total(cohort.until("unmask").up["unmask"])


def test_a_session_cannot_be_replayed_under_another_label_even_with_its_header_rewritten():
    one = Cohort(label="round 7").until("share")
    two = Cohort(label="round 8").until("share")
    inbox = one.server.route(one.up["share"])[0]
    with pytest.raises(SealError, match="another session"):
        two.clients[0].mask(inbox, two.x[0])
    two = Cohort(label="round 8").until("share")
    with pytest.raises(SealError, match="were altered"):
        two.clients[0].mask(pack(two.session, Kind.INBOX, 0, inbox[HEADER.size :]), two.x[0])


@pytest.mark.parametrize("step", STEPS)
def test_an_abort_is_for_good(step):
    serve = dict(zip(STEPS, ("roster", "route", "request", "total"), strict=True))[step]
    cohort = Cohort(6).until(step)
    few = dict(list(cohort.up[step].items())[:4])
    for sent, why in [(few, "4 .* left, the threshold is 5"), (cohort.up[step], "its next step is closed")]:
        with pytest.raises(Abort, match=why):
            getattr(cohort.server, serve)(sent)


def test_nobody_at_all_is_an_abort():
    for step in STEPS:
        with pytest.raises(Abort, match=r"0 .* left"):
            aggregate(np.ones((30, 2), np.int64), dropouts={step: range(30)})


def test_bad_arguments_are_refused():
    x = np.ones((4, 2), np.int64)
    for bad in ({"dropouts": {"later": [1]}}, {"threshold": 2}, {"neighbours": 1}):
        with pytest.raises(BadInput):
            aggregate(x, **bad)
    with pytest.raises(BadInput, match="client 4"):
        SecAggClient(Session.open(4, 2), 4)
