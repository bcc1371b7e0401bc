"""What a run's opened sums give away, for its summary, its notes and `flameche audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flameche.errors import StoreError
from flameche.experiments.config import load_experiment
from flameche.experiments.run_folder import read_json
from flameche.experiments.schema import Experiment
from flameche.privacy.audit import Leakage, Opening, audit, described
from flameche.protocol.ledger import Ledger, read_opening
from flameche.registry import SCHEMES

AUDITED = ("flameche", "flameche-soft")  # methods of whose sums the log tells everything
OPENINGS = "openings.json"  # in a run folder


def opened(experiment: Experiment, ledger: Ledger) -> dict[str, Any]:
    """Give the log of opened sums, for a run's folder; nothing where there is none that is complete."""
    if experiment.method.kind not in AUDITED:
        return {}
    return {"unnoted": ledger.unnoted, "openings": [asdict(each) for each in ledger.openings]}


def leaked(experiment: Experiment, ledger: Ledger, notes: list[str]) -> dict[str, Any]:
    """Audit a run for its summary; what can be solved under a protecting scheme is noted too."""
    if experiment.method.kind not in AUDITED:
        return {"leakage": None}
    found = audited(experiment, ledger.openings, ledger.clients)
    for note in leakage_notes(experiment, found, ledger.clients):
        if note not in notes:
            notes.append(note)
    return {"leakage": described(found)}


def audited(experiment: Experiment, openings: Sequence[Opening], clients: int) -> dict[str, Leakage]:
    """Audit a log of opened sums."""
    kind = experiment.scheme.kind
    return audit(openings, clients, server_opens=SCHEMES[kind].opened_by == "server", clear=kind == "plain")


def leakage_notes(experiment: Experiment, found: dict[str, Leakage], clients: int) -> list[str]:
    """Say so where the audit solved single clients' metadata, though a scheme was to protect them."""
    who = {"server": "the server", "client": "a client, which knows its own"}
    return [
        f"the sums that were opened can be solved for the metadata of {found[party].solved} of {clients} "
        f"clients by {name} (flameche audit)"
        for party, name in who.items()
        if experiment.scheme.kind != "plain" and found[party].solved
    ]


def audit_run(path: Path) -> dict[str, Any]:
    """Audit a finished run by its folder: what was opened, and what each party could work out."""
    if not (path / "summary.json").is_file():
        raise StoreError(f"{path} is not a finished run; expected a folder such as runs/<name>/<hash>/<seed>")
    experiment, summary = load_experiment(path / "config.toml"), read_json(path / "summary.json")
    if experiment.method.kind not in AUDITED:
        raise StoreError(
            f'{path}: method.kind = "{experiment.method.kind}" keeps no log of opened sums; '
            f"{' and '.join(AUDITED)} do"
        )
    if not (path / OPENINGS).is_file():
        raise StoreError(
            f"{path}: no {OPENINGS}: the run was made by an earlier version, which kept no log of opened sums"
        )
    log = read_json(path / OPENINGS)
    openings = [read_opening(each) for each in log["openings"]]
    clients = len(summary["assignment"])
    found = audited(experiment, openings, clients)
    kinds: dict[str, list[int]] = {}
    for each in openings:
        kinds.setdefault(each.what, []).append(len(each.clients))
    notes = leakage_notes(experiment, found, clients)
    if log["unnoted"]:
        notes.append(f"{log['unnoted']} more sums were opened than the log holds; the audit is incomplete")
    return {
        "run": str(path),
        "scheme": experiment.scheme.kind,
        "min_cluster": experiment.scheme.least,
        "clients": clients,
        **described(found),
        "sums": {
            what: {"sums": len(sizes), "smallest_set": min(sizes), "largest_set": max(sizes)}
            for what, sizes in kinds.items()
        },
        "noise": summary.get("privacy"),
        "notes": notes,
    }
