"""What of a run is protected, for its summary: the scheme in words, notes, packages, sums held back."""

from __future__ import annotations

from typing import Any

from flameche.experiments.schema import Experiment
from flameche.methods import METHODS
from flameche.methods.sketch import FlamecheOptions
from flameche.methods.soft import SoftOptions
from flameche.privacy.noise import Budget
from flameche.protocol.ledger import Ledger
from flameche.registry import SCHEMES

FEW_CLIENTS, FEW_EACH = 24, 8  # up to so many clients, or fewer a cluster, guarded clusters may be random


def has_metadata(experiment: Experiment) -> bool:
    """Tell whether the method's clients send metadata, which scheme.kind seals."""
    return bool(METHODS[experiment.method.kind].about.by_metadata)


def protection(experiment: Experiment) -> str:
    """Name what protects what: "bfv", "bfv + secagg updates", "secagg updates", or "plain"."""
    how = experiment.scheme
    parts: list[str] = [how.kind] if has_metadata(experiment) else []
    if how.updates != "clear":
        parts.append(f"{how.updates} updates")
    return " + ".join(parts) or "plain"


def packages(experiment: Experiment) -> list[str]:
    """List the packages that this protection stands on."""
    kinds = [experiment.scheme.kind if has_metadata(experiment) else "plain", experiment.scheme.updates]
    noise = {"dp-accounting"} if experiment.privacy.epsilon is not None else set()
    return sorted({SCHEMES[kind].needs for kind in kinds if kind != "clear"} - {""} | noise)


def accounted(experiment: Experiment, ledger: Ledger) -> dict[str, Any] | None:
    """Say what noise costs and covers: epsilon of one release, and of all of the client with the most."""
    how = experiment.privacy
    if how.epsilon is None:
        return None
    budget = Budget(how.epsilon, how.delta)
    releases = max(1, int(ledger.releases.max(initial=0)))  # in the simulator; a node's data do not drift
    return {
        "unit": "record",
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "releases": releases,
        "epsilon_spent": budget.spent(releases),
        "noise": how.noise,
        "multiplier": budget.multiplier,
    }


def release_notes(found: dict[str, Any] | None) -> list[str]:
    """Say what noise covers and what it does not, and what the releases cost together, as `accounted`."""
    if found is None:
        return []
    more = ""
    if found["releases"] > 1:
        more = f"; {found['releases']} releases of some clients cost {found['epsilon_spent']:.3g} together"
    notes = [
        f"metadata have noise: epsilon = {found['epsilon']:g} at delta = {found['delta']:g} for one "
        f"record{more}. Runs on the same data add up, those with other seeds too. Class counts, model "
        "updates and that a client takes part are not covered (SECURITY.md)"
    ]
    if found["noise"] == "seeded":
        notes.append(
            'privacy.noise = "seeded": who knows the seed can take the noise out; it protects nobody'
        )
    return notes


def protection_notes(experiment: Experiment) -> list[str]:
    """Say so where a scheme had nothing to seal."""
    how = experiment.scheme
    if how.kind == "plain" or has_metadata(experiment):
        return []
    went = "in the clear (scheme.updates)" if how.updates == "clear" else f"under {how.updates}"
    return [
        f'scheme.kind = "{how.kind}" seals metadata, of which {experiment.method.kind} has none; '
        f"its updates went {went}"
    ]


def leak_notes(experiment: Experiment) -> list[str]:
    """Say what can be solved from the sums of this setting, and where its clusters may be random.

    Every setting of paper mode in which single clients were solved has a note (SECURITY.md).
    """
    if experiment.scheme.kind == "plain" or not has_metadata(experiment):
        return []
    method = experiment.method
    if not isinstance(method, FlamecheOptions | SoftOptions):
        return []
    return _single_clients(experiment, method)


def _single_clients(experiment: Experiment, method: FlamecheOptions | SoftOptions) -> list[str]:
    """Say what the method's own sums tell of single clients, and if the guard may spoil its clusters."""
    if experiment.scheme.least == 1:
        masked = experiment.scheme.kind == "secagg"  # its sums are over two clients at least
        how = "solve sums for" if masked else "read"
        return [
            f"scheme.min_cluster = 1 guards nothing: {_opener(experiment)} can {how} single clients' "
            "metadata (SECURITY.md)"
        ]
    if isinstance(method, SoftOptions) or method.by_session:
        return []  # it opens few sums, and one guard decides over all of them
    return _solvable(experiment, method) + _random_clusters(experiment, method)


def _solvable(experiment: Experiment, method: FlamecheOptions) -> list[str]:
    """Say which of the method's own sums can be solved, and by whom."""
    clients = experiment.data.clients
    if experiment.participants == clients and not experiment.events:
        return []  # the same clients are summed in every round
    if method.hide_assignments:
        return [
            "with method.hide_assignments the sums of different rounds are not compared: "
            f"{_opener(experiment)} can solve them for some clients' metadata (SECURITY.md)"
        ]
    return []


def _random_clusters(experiment: Experiment, method: FlamecheOptions) -> list[str]:
    """Warn where there are too few clients to cluster well by sums over several of them."""
    least, clients, k = experiment.scheme.least, experiment.data.clients, method.clusters
    if clients > FEW_CLIENTS and clients >= FEW_EACH * int(k):
        return []
    opened = "can be solved" if experiment.scheme.kind == "secagg" else "are opened"
    return [
        f"{clients} clients are few for scheme.min_cluster = {least}: the clusters may be random. More "
        "clients would help, or, where all parties agree, scheme.min_cluster=1, with which single clients' "
        f"metadata {opened} (README.md, SECURITY.md)"
    ]


def _opener(experiment: Experiment) -> str:
    """Name who sees opened sums."""
    return (
        "the server"
        if SCHEMES[experiment.scheme.kind].opened_by == "server"
        else "whoever has the clients' key"
    )


def deferred(ledger: Ledger) -> dict[str, int]:
    """Count the sums that were held back, and all that were asked for."""
    return {"sums": sum(ledger.held_back.values()), "of": sum(ledger.asked.values())}


def deferred_notes(experiment: Experiment, ledger: Ledger) -> list[str]:
    """Say how many sums were held back, of what, why, and what would help."""
    least = experiment.scheme.least
    names = {"metadata": "metadata", "model": "model updates"}
    notes = [
        f"{held} of {ledger.asked[what]} sums of {names[what]} were held back {_why(least, names[what])}"
        for what, held in ledger.held_back.items()
        if held
    ]
    if ledger.cancelled:
        rounds = sorted(set(ledger.cancelled))
        when = [
            f"round {r}" if r <= experiment.rounds else "the criteria after the last round" for r in rounds
        ]
        notes.append(
            f"{', '.join(when)}: a sum was left out, because its ciphertexts cancelled each other and it "
            "would not have been sealed any more; what it would have changed stayed as it was"
        )
    return notes


def _why(least: int, what: str) -> str:
    if least == 1:
        return "because a sum over one client shows it; more clients a round would help"
    return (
        f"by scheme.min_cluster = {least}; more clients would help, or, where all parties agree, "
        f"scheme.min_cluster=1, with which sums may show a single client's {what} (SECURITY.md)"
    )
