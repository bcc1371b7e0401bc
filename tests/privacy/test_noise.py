"""Noise at the source: as strong as asked for, drawn once, kept over restarts, counted when data drift."""

import builtins
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from flameche.errors import ConfigError, StoreError
from flameche.experiments.build import build, load_federation
from flameche.experiments.config import config_hash, load_experiment, parse_experiment, to_toml
from flameche.experiments.leakage import audit_run
from flameche.experiments.newcomers import Finished, assign_client
from flameche.experiments.run import cluster_experiment, run_experiment
from flameche.experiments.select import select_experiment
from flameche.metadata.extractors import Metadata
from flameche.privacy.noise import Budget, NoisySource, secret_normals, seeded_normals

EVERYBODY = np.arange(40)
SMALL = {
    "name": "private",
    "rounds": 4,
    "participation": 0.5,
    "data": {"clients": 12, "groups": 2, "per_label": 10, "heterogeneity": "fds", "allow_fewer": True},
    "training": {"epochs": 1, "batch": 32, "threads": 1},
    "method": {"clusters": 2},
    "privacy": {"epsilon": 8.0},
}
DRIFT = {"round": 2, "kind": "drift", "clients": [1, 2, 3], "to": 1}


def small(**changes):
    return parse_experiment({**SMALL, **changes})


def means(counts, clients=40, numbers=50):
    phi = np.zeros((clients, len(counts), numbers))
    return Metadata(phi, np.tile(counts, (clients, 1)))


def delta_of(epsilon, sigma):
    """Give delta where a record moves the result by one: Balle and Wang, 2018, Theorem 8."""
    near, far = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
    return norm.cdf(near) - np.exp(epsilon) * norm.cdf(far)


@given(st.floats(0.1, 12), st.floats(1e-8, 1e-2))
def test_the_multiplier_is_that_of_the_analytic_gaussian_mechanism(epsilon, delta):
    s = Budget(epsilon, delta).multiplier
    assert delta_of(epsilon, s) == pytest.approx(delta, rel=1e-4)
    assert delta_of(epsilon, 0.99 * s) > delta  # with less noise it would not hold


@pytest.mark.parametrize("draw", [secret_normals, seeded_normals(3)])
def test_the_noise_in_what_clients_release_is_what_was_asked_for(draw):
    budget, counts = Budget(2.0, 1e-5), np.array([5, 50, 0, 300])
    sent = NoisySource(budget, draw).release(EVERYBODY, lambda: means(counts))
    for c, n in enumerate(counts.tolist()):
        if n == 0:
            assert (sent.phi[:, c] == 0).all()  # a class that a client lacks stays missing
            continue
        noise = sent.phi[:, c].ravel() / (2 * budget.multiplier / n)
        draws = len(noise)
        assert abs(noise.mean()) < 6 / np.sqrt(draws)
        assert abs(noise.std() - 1) < 6 / np.sqrt(2 * draws)
    every = (sent.phi / budget.deviation(np.where(counts, counts, 1))[:, None])[:, counts > 0].ravel()
    assert abs((np.abs(every) > 2).mean() - 2 * norm.sf(2)) < 6 * np.sqrt(0.05 / len(every))  # Gaussian tails


def test_noise_of_clients_classes_and_releases_is_drawn_apart():
    source = NoisySource(Budget(1.0, 1e-5), seeded_normals(0))
    first, second = (source.release(EVERYBODY, lambda: means(np.array([9, 9]))).phi for _ in range(2))
    flat = np.concatenate([first.reshape(80, -1), second.reshape(80, -1)])
    close = np.corrcoef(flat) - np.eye(160)
    assert np.abs(close).max() < 0.75


def test_secret_noise_differs_with_every_source_and_seeded_noise_does_not():
    def drawn(draw):
        return NoisySource(Budget(1.0, 1e-5), draw).release(EVERYBODY, lambda: means(np.array([9]))).phi

    assert np.isclose(drawn(secret_normals), drawn(secret_normals)).mean() < 0.01
    assert (drawn(seeded_normals(1)) == drawn(seeded_normals(1))).all()
    assert np.isclose(drawn(seeded_normals(1)), drawn(seeded_normals(2))).mean() < 0.01


def test_what_was_released_is_given_again_and_the_exact_means_are_not_asked_for():
    kept = {}
    first = NoisySource(Budget(1.0, 1e-5))
    sent = first.release(EVERYBODY, lambda: means(np.array([9])))
    first.keep_in(kept.update)
    later = first.release(EVERYBODY[:3], lambda: means(np.array([7]), clients=3))
    again = NoisySource(Budget(1.0, 1e-5), kept=kept)
    assert (again.release(EVERYBODY, lambda: 1 / 0).phi == sent.phi).all()
    assert (again.release(EVERYBODY[:3], lambda: 1 / 0).phi == later.phi).all()
    with pytest.raises(StoreError, match="other clients"):
        NoisySource(Budget(1.0, 1e-5), kept=kept).release(EVERYBODY[1:], lambda: 1 / 0)


@given(st.floats(0.2, 8), st.integers(2, 9))
def test_releases_compose_as_one_with_less_noise(epsilon, releases):
    budget = Budget(epsilon, 1e-5)
    together = budget.spent(releases)
    assert budget.spent(1) == epsilon < together < releases * epsilon + 1e-9
    assert delta_of(together, budget.multiplier / np.sqrt(releases)) == pytest.approx(1e-5, rel=1e-3)


# Runs


class Killed(Exception):
    pass


@pytest.mark.parametrize("when", [0, 1, 3])
def test_a_run_that_goes_on_has_the_same_noise_also_of_data_that_drifted(tmp_path, when):
    experiment = small(events=[DRIFT])

    def stop(record):
        if record["round"] == when:
            raise Killed

    if when:
        with pytest.raises(Killed):
            run_experiment(experiment, 0, tmp_path, on_round=stop)
        (file,) = tmp_path.rglob("noisy.npz")
        with np.load(file) as held:
            before = dict(held)
        if when == 1:  # as if it had been killed before its first checkpoint
            (file.parent / "checkpoint.npz").unlink()
    summary, folder = run_experiment(experiment, 0, tmp_path)
    with np.load(folder / "noisy.npz") as held:
        after = dict(held)
    assert {name.split("/")[0] for name in after} == {"0", "1"}
    if when:
        assert all((after[name] == before[name]).all() for name in before)
        assert len(before) == (3 if when == 1 else 6)
    assert summary["privacy"]["releases"] == summary["ledger"]["releases"] == 2
    spent = summary["privacy"]["epsilon_spent"]
    assert 8 < spent == Budget(8.0, 1e-5).spent(2)
    assert any(f"2 releases of some clients cost {spent:.3g}" in note for note in summary["notes"])


def test_a_run_afresh_draws_other_noise(tmp_path):
    first = {}
    for fresh in (False, True):
        _, folder = run_experiment(small(), 0, tmp_path, fresh=fresh)
        with np.load(folder / "noisy.npz") as held:
            assert not fresh or np.isclose(held["0/phi"], first["0/phi"]).mean() < 0.01
            first = dict(held)


def test_epsilon_is_told_in_summary_audit_notes_and_report(tmp_path):
    from flameche.report import write_report

    summary, folder = run_experiment(small(), 0, tmp_path / "runs")
    told = summary["privacy"]
    assert (told["epsilon"], told["delta"], told["releases"], told["unit"]) == (8.0, 1e-5, 1, "record")
    assert audit_run(folder)["noise"] == told
    assert any("model updates" in note and "Class counts" in note for note in summary["notes"])
    assert any("Runs on the same data add up" in note for note in summary["notes"])
    assert "dp-accounting" in json.loads((folder / "environment.json").read_text())
    page = write_report(tmp_path / "runs", tmp_path / "page").read_text()
    assert "epsilon = 8 at delta = 1e-05 for one record" in page and "ε = 8, δ = 1e-05" in page


def test_seeded_noise_says_that_it_protects_nobody_and_makes_equal_runs():
    experiment = small(privacy={"epsilon": 4.0, "noise": "seeded"})
    one, two = cluster_experiment(experiment, 0), cluster_experiment(experiment, 0)
    assert one["assignment_final"] == two["assignment_final"]
    assert any("protects nobody" in note for note in one["notes"])


@pytest.mark.parametrize("scheme", ["bfv", "secagg"])
def test_noise_and_a_scheme_go_together(scheme):
    found = cluster_experiment(small(privacy={"epsilon": 100.0}, scheme={"kind": scheme}), 0)
    assert found["ari_final"] == 1.0
    assert all(party["solved"] == 0 for party in found["leakage"].values())


def test_a_newcomer_finds_its_cluster_by_features_that_are_bounded_as_everybodys(tmp_path):
    experiment = small(privacy={"epsilon": 100.0})
    summary, folder = run_experiment(experiment, 0, tmp_path)
    federation, _ = load_federation(experiment, 1)
    finished = Finished.read(folder)
    for group in (0, 1):
        own = federation.train.of(int(np.flatnonzero(federation.group == group)[0]))
        found = assign_client(finished, own[0], own[1])
        group_of = dict(
            zip(summary["assignment_final"], load_federation(experiment, 0)[0].group, strict=True)
        )
        assert group_of[found["cluster"]] == group


def test_groups_are_found_under_noise_that_is_small():
    assert cluster_experiment(small(privacy={"epsilon": 100.0}), 0)["ari_final"] == 1.0


def test_without_privacy_nothing_changes():
    plain = {key: value for key, value in SMALL.items() if key != "privacy"}
    off = parse_experiment(plain)
    assert config_hash(off) == config_hash(parse_experiment({**plain, "privacy": {}}))
    world = build(off, 0, device="cpu", training=False).world
    assert world.metadata.phi.shape[2] > 16 and world.noise == 0 and not world.ledger.releases.any()
    assert cluster_experiment(off, 0)["privacy"] is None


def test_a_block_that_noise_drowns_weighs_next_to_nothing_and_an_exact_one_as_before():
    from flameche.em.spherical import sample_weight

    counts = np.array([2, 10, 50, 1000])
    assert (sample_weight(counts) == np.minimum(counts, 64) / 64).all()
    noisy = sample_weight(counts, 2 * Budget(1.0, 1e-5).multiplier)
    assert (np.diff(noisy) > 0).all() and (noisy <= sample_weight(counts)).all()
    assert noisy[0] < noisy[2] / 500


def test_privacy_is_read_back_from_a_runs_config(tmp_path):
    (tmp_path / "config.toml").write_text(to_toml(small()))
    assert load_experiment(tmp_path / "config.toml").privacy == small().privacy
    assert parse_experiment({**SMALL, "privacy": {}}, ["privacy.epsilon=2.5"]).privacy.epsilon == 2.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"kind": "fedavg"}}, 'method.kind = "fedavg" adds no noise'),
        ({"method": {"kind": "flameche-soft"}}, "adds no noise"),
        ({"method": {"mode": "paper"}}, 'with mode = "paper" adds no noise'),
        ({"metadata": {"kind": "label-counts"}}, 'not "label-counts"'),
        ({"privacy": {"delta": 1e-6}}, "privacy.delta needs privacy.epsilon"),
        ({"privacy": {"epsilon": 0.0}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1.0, "delta": 1.0}}, "privacy.delta"),
        ({"privacy": {"epsilon": 1.0, "noise": "none"}}, "privacy.noise"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, said):
    with pytest.raises(ConfigError) as refused:
        small(**changes)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_k_is_chosen_in_the_run_and_metadata_without_noise_are_not_taken():
    with pytest.raises(ConfigError, match="release of its own"):
        select_experiment(small(), 0, 4)
    with pytest.raises(ConfigError, match="have no noise"):
        build(small(), 0, device="cpu", training=False, metadata=means(np.array([9] * 10), clients=12))


def test_a_missing_package_is_named_with_the_remedy(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name == "dp_accounting":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'flameche\[dp\]'"):
        cluster_experiment(small(), 0)
