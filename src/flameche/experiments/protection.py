"""What of a run is protected, for its summary: the scheme in words, notes, packages, sums held back."""

from __future__ import annotations

from flameche.crypto.registry import SCHEMES
from flameche.experiments.schema import Experiment
from flameche.methods import METHODS
from flameche.protocol.ledger import Ledger


def has_metadata(experiment: Experiment) -> bool:
    """Tell whether the method's clients send metadata, which scheme.kind seals."""
    return METHODS[experiment.method.kind].about.family == "metadata"


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
    return sorted({SCHEMES[kind].needs for kind in kinds if kind != "clear"} - {""})


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
