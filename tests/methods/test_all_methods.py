"""Laws that every method keeps, and short runs of each from its description to its summary."""

import io

import numpy as np
import pytest
import torch

from flameche.errors import BadInput
from flameche.experiments.build import build
from flameche.experiments.config import parse_experiment
from flameche.experiments.run import run_experiment
from flameche.methods import METHODS
from flameche.methods.base import UNSEEN
from flameche.protocol.updates import protect_updates
from flameche.simulation.engine import Checkpoint, _checkpoint, _restore
from flameche.simulation.schedule import draw_participants
from tests.methods.worlds import GROUP, SCHEDULE, partition, planted_world, play

# Every method, with options that lead it through its different ways.
VARIANTS = {
    "flameche, paper": ("flameche", {"clusters": 3, "tau": 2}),
    "flameche, vectors": (
        "flameche",
        {"clusters": 3, "tau": 2, "init": "vectors", "m_step": "participants"},
    ),
    "soft": ("flameche-soft", {"clusters": 3}),
    "soft, weighted": ("flameche-soft", {"clusters": 3, "training": "weighted"}),
    "soft, vmf": ("flameche-soft", {"clusters": 3, "family": "vmf"}),
    "soft, gaussian": ("flameche-soft", {"clusters": 3, "family": "gaussian"}),
    "soft, spherical": ("flameche-soft", {"clusters": 3, "family": "spherical"}),
    "fedavg": ("fedavg", {}),
    "oracle": ("oracle", {}),
    "ifca": ("ifca", {"clusters": 3, "restarts": 3}),
    "ifca, one start": ("ifca", {"clusters": 3, "restarts": 1}),
    "fesem": ("fesem", {"clusters": 3}),
    "fesem, different": ("fesem", {"clusters": 3, "start": "different"}),
    "fesem, shared": ("fesem", {"clusters": 3, "start": "shared"}),
    "fesem, layer": ("fesem", {"clusters": 3, "layer": "head"}),
    "fesem, first": ("fesem", {"clusters": 3, "newcomers": "first"}),
    "fedgroup": ("fedgroup", {"clusters": 3}),
    "fedgroup, weights": ("fedgroup", {"clusters": 3, "cold_rounds": 1, "newcomers": "weights"}),
    "stocfl": ("stocfl", {"clusters": 3}),
    "stocfl, threshold": ("stocfl", {"threshold": 0.9}),
    "kfed": ("kfed", {"clusters": 3}),
    "pacfl": ("pacfl", {"clusters": 3, "components": 1}),
    "pacfl, sum": ("pacfl", {"clusters": 3, "components": 1, "angle": "sum"}),
    "pacfl, raw": ("pacfl", {"clusters": 3, "components": 1, "angle": "raw-sum", "linkage": "single"}),
    "pacfl, raw cosine": (
        "pacfl",
        {"clusters": 3, "components": 1, "angle": "raw-cosine", "linkage": "complete"},
    ),
    "pacfl, alpha": ("pacfl", {"alpha": 30.0, "components": 1, "angle": "smallest"}),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


def made(name, world):
    kind, options = VARIANTS[name]
    return METHODS[kind](world, **options)


def test_every_method_is_among_the_variants():
    assert {kind for kind, _ in VARIANTS.values()} == METHODS.keys()


# Clusters


@every_variant
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_after_every_round_assignments_name_clusters_and_serving_names_models(name, noise):
    world = planted_world(noise=noise)
    method, seen = made(name, world), set()
    for r in range(1, 13):
        clients = draw_participants(1, r, 12, 3)
        method.round(r, clients)
        seen |= set(clients.tolist())
        known, unseen = method.assignment != UNSEEN, sorted(set(range(12)) - seen)
        assert method.assignment.shape == (12,) and 1 <= method.clusters <= 12
        assert ((method.assignment[known] >= 0) & (method.assignment[known] < method.clusters)).all()
        serving = method.serving()
        assert serving.shape == (12,) and serving.min() >= 0 and serving.max() < len(method.models)
        assert method.models.finite
        if name not in ("fedavg", "oracle") and not name.startswith(("kfed", "pacfl", "soft")):
            assert (method.assignment[unseen] == UNSEEN).all()  # nothing is known of them
    final = method.finish().assignment
    assert final is None or (final.shape == (12,) and final.max() < method.clusters)


# Random centres, IFCA's and FeSEM's, can leave one of three unused, so that two groups stay together.
UNCERTAIN = ("fedavg", "fesem, different", "fesem, shared")
CERTAIN = [n for n in VARIANTS if "ifca" not in n and n not in UNCERTAIN]


@pytest.mark.parametrize("name", CERTAIN)
def test_planted_groups_are_found(name):
    method = made(name, planted_world())
    for r in range(1, 13):
        method.round(r, np.array(SCHEDULE[(r - 1) % 6]))
    last = method.finish().assignment  # None without a last E-step
    assert partition(method.assignment if last is None else last) == partition(GROUP)


# What draws at random per client cannot be permuted with the clients: FeSEM's first centres, unless k-means
# gives them ("different", "shared"), and FLAMECHE's reclustering, which is off here. Where the numbers of
# clusters depend on clients' places (K-Fed's first device, k-means in FedGroup), partitions compare.
FREE = {
    **{name: VARIANTS[name] for name in VARIANTS if name not in ("fesem, different", "fesem, shared")},
    "flameche, paper": ("flameche", {"clusters": 3, "tau": 0}),
    "flameche, vectors": ("flameche", {"clusters": 3, "tau": 0, "init": "vectors"}),
}


@pytest.mark.parametrize("name", FREE)
def test_permuting_clients_permutes_assignments_and_models(name):
    kind, options = FREE[name]
    order = np.random.default_rng(3).permutation(12)  # who stands at each place
    place = np.argsort(order)  # where each stands
    first, second = METHODS[kind](planted_world(), **options), METHODS[kind](planted_world(order), **options)
    for r, clients in enumerate(SCHEDULE, 1):
        first.round(r, np.array(clients))
        second.round(r, place[clients])
        assert partition(first.assignment) == partition(second.assignment[place])
        one, other = (m.models.pick(m.serving()).params for m in (first, second))
        known = np.flatnonzero(first.assignment != UNSEEN)  # a random centre may serve the others
        assert torch.allclose(one[known], other[place][known], atol=1e-12)


# FedAvg as a special case


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("oracle", {}),
        ("flameche", {"clusters": 1}),
        ("flameche-soft", {"clusters": 1}),
        ("ifca", {"clusters": 1, "restarts": 1}),
        ("kfed", {"clusters": 1}),
        ("pacfl", {"clusters": 1, "components": 1}),
        ("pacfl", {"alpha": 179.0, "components": 1}),
        # A newcomer's first training moves nothing; k-means would begin one training ahead.
        ("fesem", {"clusters": 1, "start": "shared"}),
        ("fesem", {"clusters": 1, "start": "different"}),
    ],
)
def test_with_one_cluster_a_method_is_fedavg(kind, options):
    fedavg = METHODS["fedavg"](planted_world(one_group=True))
    method = METHODS[kind](planted_world(one_group=True), **options)
    for r, clients in enumerate(SCHEDULE, 1):
        fedavg.round(r, np.array(clients))
        method.round(r, np.array(clients))
        assert torch.equal(method.models.params[0], fedavg.models.params[0]), r
        assert torch.equal(method.models.buffers[0], fedavg.models.buffers[0]), r


def test_fedgroup_with_one_group_is_fedavg_after_a_cold_start_of_one_round():
    fedavg, quick, slow = (
        METHODS["fedavg"](planted_world()),
        METHODS["fedgroup"](planted_world(), clusters=1, cold_rounds=1),
        METHODS["fedgroup"](planted_world(), clusters=1, cold_rounds=2),
    )
    for r, clients in enumerate(SCHEDULE, 1):
        for method in (fedavg, quick, slow):
            method.round(r, np.array(clients))
        # Equal but for rounding: its sums run in the order of clients' numbers.
        assert torch.allclose(quick.models.params[0], fedavg.models.params[0], rtol=0, atol=1e-12)
        if r > 1:  # the model of a longer cold start stands still meanwhile
            assert not torch.allclose(slow.models.params[0], fedavg.models.params[0], atol=1e-3)


def test_stocfl_is_fedavg_where_all_merge_and_nothing_pulls_and_differs_by_the_pull_alone():
    everybody = [list(range(12))] * 3
    fedavg, free, pulled = (
        METHODS["fedavg"](planted_world()),
        METHODS["stocfl"](planted_world(), threshold=-1.0, mu=0.0),
        METHODS["stocfl"](planted_world(), threshold=-1.0, mu=0.5),
    )
    for method in (fedavg, free, pulled):
        play(method, everybody)
    assert free.clusters == pulled.clusters == 1
    assert torch.equal(free.models.params[1], fedavg.models.params[0])
    assert not torch.allclose(pulled.models.params[1], fedavg.models.params[0], atol=1e-3)


def test_fesem_from_kmeans_is_fedavg_one_training_ahead():
    everybody = [list(range(12))] * 4
    fedavg, fesem = METHODS["fedavg"](planted_world()), METHODS["fesem"](planted_world(), clusters=1)
    play(fedavg, everybody)
    play(fesem, everybody[:3])
    assert torch.allclose(fesem.models.params[0], fedavg.models.params[0], atol=1e-12)


# Restarts


def stored(method, world, r):
    """Write a checkpoint as a file holds it, and read it."""
    checkpoint = _checkpoint(method, world, r, 0.0)
    file = io.BytesIO()
    np.savez(file, **checkpoint.arrays)
    file.seek(0)
    with np.load(file) as arrays:
        return Checkpoint(r, {key: arrays[key] for key in arrays.files}, checkpoint.ledger, 0.0)


@every_variant
def test_a_run_stopped_after_every_round_ends_bit_identically(name):
    whole_world = planted_world(noise=1.0)
    whole = made(name, whole_world)
    world = planted_world(noise=1.0)
    method = made(name, world)
    for r, clients in enumerate(SCHEDULE, 1):
        whole.round(r, np.array(clients))
        method.round(r, np.array(clients))
        assert np.array_equal(method.assignment, whole.assignment)
        checkpoint = stored(method, world, r)
        world = planted_world(noise=1.0)
        method = made(name, world)
        _restore(method, world, checkpoint)
        assert torch.equal(method.models.params, whole.models.params)
        assert torch.equal(method.models.buffers, whole.models.buffers)
        assert np.array_equal(method.serving(), whole.serving()) and method.clusters == whole.clusters
    assert np.array_equal(method.finish().assignment, whole.finish().assignment)
    for part in ("up", "down", "tuning_runs", "oracle_knowledge"):
        assert world.ledger.state()[part] == whole_world.ledger.state()[part]
    assert method.state().keys() == whole.state().keys()
    for key, value in whole.state().items():
        assert np.array_equal(method.state()[key], value, equal_nan=value.dtype.kind == "f"), key


# Costs

M = 40  # bytes of a model: four weights and a buffer, of eight bytes
CAME = np.bincount(np.concatenate(SCHEDULE[:2]), minlength=12)  # rounds of each client in the first two
NEW = (CAME > 0).astype(int)
LATE = np.bincount(SCHEDULE[1], minlength=12)  # came in the second round
PHI = 4 * (30 + 5 + 1) + 48  # FLAMECHE's metadata: five blocks of six, their masses, one, and the envelope
CENTROIDS = 3 * 4 * (30 + 5)
# Soft FLAMECHE's session: second moments of 5 x (3 + 1) numbers; a histogram and a sketch, twice;
# means; what is summed for each component, twice: sketch, its second moments, likelihood, one; errors.
SESSION = 8 * (210 + 2 * (32 + 3) + (30 + 5 + 1) + 2 * (3 + 6 + 2) + 2)


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("fedavg", {"model": CAME * M}, {"model": CAME * M}),
        ("oracle", {"model": CAME * M}, {"model": CAME * M}),
        (
            "flameche, paper",
            {"model": CAME * M, "metadata": NEW * PHI, "assignment": CAME * 8},
            {"model": CAME * M, "centroids": CAME * CENTROIDS},
        ),
        (
            "soft",
            # In the clear: twice a part of a leaf, a cluster, three times responsibilities for three.
            {"model": CAME * M, "exchange": CAME**0 * SESSION, "assignment": CAME**0 * (2 + 1 + 3 * 3)},
            {"model": CAME * M},
        ),
        (
            "ifca",
            {"model": 3 * CAME * M, "assignment": 3 * CAME * 8},
            {"model": 9 * CAME * M, "tuning": 3 * CAME * M},
        ),
        ("ifca, one start", {"model": CAME * M, "assignment": CAME * 8}, {"model": 3 * CAME * M}),
        ("fesem", {"model": (CAME + NEW) * M}, {"model": (CAME + NEW) * M}),
        ("fedgroup", {"model": NEW * M}, {"model": NEW * M}),  # the cold start
        ("fedgroup, weights", {"model": (NEW + LATE) * M}, {"model": (NEW + LATE) * M}),
        (
            "stocfl",
            {"model": (2 * CAME + NEW) * M, "tuning": NEW**0 * M},
            {"model": (2 * CAME + NEW) * M, "tuning": NEW**0 * M},
        ),
        ("stocfl, threshold", {"model": (2 * CAME + NEW) * M}, {"model": (2 * CAME + NEW) * M}),
        ("kfed", {"model": CAME * M, "metadata": NEW * 4 * 12}, {"model": CAME * M}),  # two class means
        ("pacfl", {"model": CAME * M, "metadata": NEW * 4 * 12}, {"model": CAME * M}),  # two vectors
    ],
)
def test_bytes_of_two_rounds_are_those_counted_by_hand(name, up, down):
    world = planted_world()
    play(made(name, world), SCHEDULE[:2])
    for found, expected in ((world.ledger.up, up), (world.ledger.down, down)):
        assert {k: v.tolist() for k, v in found.items() if v.any()} == {
            k: v.tolist() for k, v in expected.items()
        }


# Models


@pytest.mark.parametrize("name", [n for n in VARIANTS if n not in ("fedavg", "fesem, shared")])
def test_a_cluster_without_participants_keeps_its_model(name):
    method = made(name, planted_world())
    play(method)
    before, serving = method.models, method.serving()
    present = np.flatnonzero(GROUP == 0)[:2]
    resting = np.setdiff1d(serving[GROUP != 0], serving[GROUP == 0])
    assert len(resting), "the clusters are not apart"
    method.round(7, present)
    assert torch.equal(method.models.pick(resting).params, before.pick(resting).params)
    assert torch.equal(method.models.pick(resting).buffers, before.pick(resting).buffers)
    row = method.serving()[present[0]]
    assert not torch.equal(method.models.params[row], before.params[row])  # and theirs was trained


@every_variant
def test_samples_weigh_where_asked(name):
    plain, weighed = planted_world(), planted_world()
    weighed.weighting = "samples"
    weighed.trainer.sizes = np.arange(1, 13) ** 2
    first, second = made(name, plain), made(name, weighed)
    play(first)
    play(second)
    assert not torch.allclose(first.models.params, second.models.params, atol=1e-3)


@pytest.mark.parametrize(
    "name", [n for n, (kind, _) in VARIANTS.items() if METHODS[kind].about.needs == "sums"]
)
@pytest.mark.parametrize(("server_lr", "absent"), [(1.0, "out"), (0.75, "out"), (1.0, "stay")])
def test_a_method_that_needs_sums_alone_trains_the_same_models_under_masks(name, server_lr, absent):
    plain, masked = planted_world(), planted_world()
    masked.updates = protect_updates("secagg", 12, 1, masked.ledger)
    plain.server_lr = masked.server_lr = server_lr
    plain.absent = masked.absent = absent
    first, second = made(name, plain), made(name, masked)
    for r in (1, 2, 3):
        first.round(r, np.arange(12))
        second.round(r, np.arange(12))
    every = first.choice if "ifca" in name else first.assignment[None]
    assert min(np.unique(one, return_counts=True)[1].min() for one in every) > 1  # one alone keeps its model
    assert np.array_equal(first.assignment, second.assignment)
    assert (first.models.params - second.models.params).abs().max() < 1e-9
    assert (first.models.buffers - second.models.buffers).abs().max() < 1e-9


# Whole runs, on digits

SMALL = {
    "name": "small",
    "rounds": 3,
    "participation": 0.5,
    "data": {"clients": 8, "per_label": 6, "heterogeneity": "csf", "label_skew": False, "holdout": 0.3},
    "training": {"epochs": 1, "batch": 32, "threads": 1},
}
TIMES = {"seconds", "wall_s", "ledger"}


def described(kind, scheme=None, options=None, **tables):
    method = {"kind": kind, **(options or {})}
    return parse_experiment({**SMALL, "method": method, "scheme": scheme or {}, **tables})


@pytest.mark.parametrize("kind", METHODS)
def test_a_small_run_goes_from_its_description_to_its_summary_and_resumes(kind, tmp_path):
    experiment = described(kind)
    whole, _ = run_experiment(experiment, 0, tmp_path / "whole")
    assert 0 < whole["accuracy"] <= 1 and len(whole["accuracy_per_round"]) == 3
    assert whole["bytes_up"] > 0 and not any("diverged" in note for note in whole["notes"])

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, 0, tmp_path / "stopped", on_round=stop)
    again, _ = run_experiment(experiment, 0, tmp_path / "stopped")
    assert {k: v for k, v in again.items() if k not in TIMES} == {
        k: v for k, v in whole.items() if k not in TIMES
    }


def test_a_model_goes_as_far_as_the_description_says():
    moved = {}
    for step in (1.0, 0.25):
        setup = build(described("fedavg", training={**SMALL["training"], "server_lr": step}), 0, device="cpu")
        start = setup.method.models.params
        setup.method.round(1, np.arange(8))
        moved[step] = setup.method.models.params - start
    assert moved[1.0].abs().max() > 1e-3
    assert (moved[0.25] - moved[1.0] / 4).abs().max() < 1e-6


HARD = [n for n in VARIANTS if n != "soft, weighted"]


@pytest.mark.parametrize("name", HARD)
def test_where_everybody_takes_part_nobody_is_absent(name):
    out, stay = planted_world(), planted_world()
    stay.absent = "stay"
    methods = made(name, out), made(name, stay)
    for r in (1, 2, 3):
        for method in methods:
            method.round(r, np.arange(12))
    assert torch.equal(methods[0].models.params, methods[1].models.params)


def test_stocfls_global_model_has_all_who_came_as_members():
    moved = {}
    for absent in ("out", "stay"):
        world = planted_world()
        world.absent = absent
        method = made("stocfl", world)
        method.round(1, np.arange(12))
        before = method.models.params[0]
        method.round(2, np.arange(3))
        moved[absent] = method.models.params[0] - before
    assert moved["out"].abs().max() > 0
    assert (moved["stay"] - moved["out"] / 4).abs().max() < 1e-9


@pytest.mark.parametrize("kind", METHODS)
def test_absent_members_that_stay_hold_a_model_back_once_it_has_some(kind):
    # The first round from which a cluster has absent members differs by method: FLAMECHE's gathers first.
    gone = {}
    for absent in ("out", "stay"):
        training = {**SMALL["training"], "absent": absent}
        setup = build(described(kind, training=training), 0, device="cpu")
        for r in range(1, 5):
            setup.method.round(r, np.arange(8) if r < 4 else np.array([0, 4]))
            if r == 3:
                before = setup.method.models.params
        gone[absent] = float((setup.method.models.params - before).norm())
    assert 0 < gone["stay"] < 0.8 * gone["out"]


@pytest.mark.parametrize("name", ["fesem", "fedgroup"])
def test_clusters_begin_at_the_average_however_far_models_go_later(name):
    begun = []
    for step in (1.0, 0.2):
        world = planted_world()
        world.server_lr = step
        method = made(name, world)
        if name == "fesem":
            method.local = world.trainer.train(method.models, np.zeros(12, np.int64), np.arange(12), 1)
            method._seed(np.arange(12))
        else:
            method.round(1, np.arange(12))
            method.round(2, np.arange(12))
        begun.append(method.models.params)
    assert torch.equal(*begun)


@pytest.mark.parametrize("kind", METHODS)
def test_at_full_participation_every_method_plays(kind):
    setup = build(described(kind), 0, device="cpu")
    for r in (1, 2, 3):
        setup.method.round(r, np.arange(8))
    assert setup.method.assignment.min() >= 0  # everybody is known, since round 2 at the latest
    assert setup.method.models.finite


@pytest.mark.parametrize("updates", ["secagg", "ckks"])
@pytest.mark.parametrize("kind", ["fedavg", "ifca"])
def test_training_that_diverges_is_named_before_an_update_is_sealed(kind, updates):
    options = {"clusters": 2, "restarts": 1} if kind == "ifca" else {}
    training = {"epochs": 3, "batch": 4, "lr": 1e30, "trainer": "loop"}
    scheme = {"updates": updates, "min_cluster": 2}
    method = build(described(kind, scheme, options, training=training), 0, device="cpu").method
    with pytest.raises(BadInput, match=r"cannot be sealed: training diverged .*; lower training\.lr$"):
        method.round(1, np.arange(8))


@pytest.mark.parametrize(("kind", "options"), [("fedavg", {}), ("ifca", {"clusters": 2, "restarts": 2})])
def test_under_secure_aggregation_the_models_are_those_of_the_clear(kind, options, tmp_path):
    found = {}
    for updates in ("clear", "secagg"):
        scheme = {"updates": updates, "min_cluster": 2}
        experiment = described(kind, scheme, options, participation=1.0)
        setup = build(experiment, 0, device="cpu")
        setup.method.round(1, np.arange(8))
        found[updates] = setup.method, run_experiment(experiment, 0, tmp_path)[0]
    (clear, open_run), (masked, hidden_run) = found["clear"], found["secagg"]
    # Weights are of 32 bits; sums themselves are exact to 1e-9, as above.
    assert (clear.models.params - masked.models.params).abs().max() < 1e-6
    assert hidden_run["assignment"] == open_run["assignment"]
    assert hidden_run["accuracy"] == pytest.approx(open_run["accuracy"], abs=0.01)
    assert hidden_run["ledger"]["up"]["model"] > open_run["ledger"]["up"]["model"]
