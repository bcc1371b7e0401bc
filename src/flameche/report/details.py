"""The data from which the page's script draws each run, as compact JSON: curves, clusters, costs, config."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flameche.report.figures import Clusters
from flameche.report.formats import human_bytes, human_seconds
from flameche.report.markup import method_of
from flameche.report.overview import dataset_title
from flameche.report.runs import Run
from flameche.report.style import CLUSTER_COLOURS, UNSEEN, method_colour
from flameche.report.tables import mean_cell, summary_of

SCALE = 10_000  # curves are stored with four digits
MISSING = -32768  # stands for NaN
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
FACTS = (
    *("accuracy", "ARI", "ARI, final E-step", "DBI", "CH", "clusters", "rounds", "clients"),
    *("up", "down", "wall clock", "device", "noise"),
)
PARTIES = {"server": "the server", "client": "a curious client, or one who holds the key"}
LEAKAGE = {
    "sums": "sums seen", "numbers_per_client": "numbers of a client in them",
    "numbers_over_fewer": "of these in sums over some only", "smallest_set": "clients in the smallest sum",
    "rank": "sums that follow from no others", "leverage": "largest leverage (1: a client is solved)",
    "solved": "clients solved",
}  # fmt: skip
MOST_CLIENTS = 400  # above this, clusters are not drawn round by round
MOST_LOST = 40  # nodes that dropped out and are named; further ones are counted


class Details:
    """Collects the data of all runs; texts that several runs share are stored once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.runs: list[dict[str, Any]] = []

    def add(self, run: Run, address: str, name: str, files: Sequence[str]) -> None:
        """Add one run; empty values are left out.

        Args:
            run: a finished run.
            address: its id on the page.
            name: its name on the page.
            files: files with its figures.
        """
        summary = summary_of(run)
        about: dict[str, Any] = {
            "id": address,
            "name": name,
            "colour": method_colour(method_of(summary.label) or summary.method),
            "data": dataset_title(summary.dataset),
            "setting": summary.setting,
            "scheme": summary.scheme,
            "seed": summary.seed,
            "place": run.place,
            "facts": _facts_in_order(facts(run)),
            "notes": [self._text(note) for note in notes(run)],
            **_curves(run),
            **_clusters(run),
            "up": _amounts(summary.ledger.up) or _total(summary.bytes_up),
            "down": _amounts(summary.ledger.down) or _total(summary.bytes_down),
            "client": _amounts(summary.ledger.client_seconds),
            "server": _amounts(summary.ledger.server_seconds),
            "spent": {} if summary.ledger.client_seconds else _amounts(summary.seconds),
            "leakage": leakage(run),
            "oracle": list(summary.ledger.oracle_knowledge),
            "tuning": summary.ledger.tuning_runs,
            "command": self._text(run.command),
            "config": self._text(run.config_text),
            "environment": self._text(_environment(run.environment)),
            "files": list(files),
        }
        self.runs.append({key: value for key, value in about.items() if value not in ("", None, [], {}, 0)})

    def _text(self, text: str) -> int | None:
        """Store a text and return its number, from 1 on; None for an empty text."""
        return self.texts.setdefault(text, len(self.texts) + 1) if text else None

    def json(self) -> str:
        """Write all runs as JSON, escaped so that it can stand in a script element."""
        content = {
            "colours": CLUSTER_COLOURS,
            "unseen": UNSEEN,
            "scale": SCALE,
            "letters": LETTERS,
            "facts": FACTS,
            "leakage": list(LEAKAGE.values()),
            "texts": list(self.texts),
            "runs": self.runs,
        }
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        for letter in "<>&\u2028\u2029":
            text = text.replace(letter, f"\\u{ord(letter):04x}")
        return text


def facts(run: Run) -> dict[str, str]:
    """Format the numbers of a run, those that it has, by the names in FACTS."""
    summary = summary_of(run)
    numbers = [
        ("accuracy", f"{100 * summary.accuracy:.2f} %", summary.accuracy),
        ("ARI", mean_cell([summary.ari], 2).text, summary.ari),
        ("ARI, final E-step", mean_cell([summary.ari_final], 2).text, summary.ari_final),
        ("DBI", f"{summary.dbi:.2f}", summary.dbi),
        ("CH", f"{summary.ch:.1f}", summary.ch),
        ("up", human_bytes(summary.bytes_up), summary.bytes_up),
        ("down", human_bytes(summary.bytes_down), summary.bytes_down),
        ("wall clock", human_seconds(summary.wall_s), summary.wall_s),
    ]
    found = {key: text for key, text, value in numbers if not math.isnan(value)}
    if summary.diverged:
        found["accuracy"] = "training diverged"
    clients = 0 if run.clients is None else len(run.clients)
    words = (
        ("clusters", summary.k),
        ("clients", str(clients or "")),
        ("rounds", str(summary.rounds or "")),
        ("device", summary.device),
        ("noise", summary.noise),
    )
    return found | {key: text for key, text in words if text}


def leakage(run: Run) -> list[list[str]]:
    """Return a row for each party: its name, then what it could learn from the opened sums, as in LEAKAGE."""
    return [
        [PARTIES.get(party, party), *(_format(found.get(key, math.nan)) for key in LEAKAGE)]
        for party, found in summary_of(run).leakage.items()
    ]


def _format(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}" if value == int(value) else f"{value:.2f}"


def _facts_in_order(known: Mapping[str, str]) -> list[str]:
    """List facts in the order of FACTS, "" for those that a run does not have, without trailing ""."""
    texts = [known.get(key, "") for key in FACTS]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def notes(run: Run) -> list[str]:
    """List a run's notes, what its folder lacks, and where its ledger and its summary disagree."""
    return [
        *summary_of(run).notes,
        *([f"This run is {run.note}."] if run.note else []),
        *_disagreements(run),
    ]


def _disagreements(run: Run) -> list[str]:
    """Report where the bytes of the ledger do not add up to the totals of the summary."""
    summary = summary_of(run)
    found = []
    for direction, kinds, stated in (
        ("up", summary.ledger.up, summary.bytes_up),
        ("down", summary.ledger.down, summary.bytes_down),
    ):
        total = math.fsum(kinds.values())
        if kinds and not math.isnan(stated) and round(total) != round(stated):
            found.append(
                f"The ledger adds up to {total:.0f} bytes {direction}, the summary says {stated:.0f}."
            )
    return found


def packed(values: Iterable[float]) -> str:
    """Encode numbers as 16-bit integers in base64, a quarter as long as digits; NaN becomes MISSING."""
    numbers = [MISSING if math.isnan(v) else max(-32767, min(32767, round(SCALE * v))) for v in values]
    return base64.b64encode(np.array(numbers, "<i2").tobytes()).decode()


def _curves(run: Run) -> dict[str, Any]:
    rounds = run.rounds
    if not rounds:
        accuracy = summary_of(run).accuracy_per_round
        return {"accuracy": packed(accuracy)} if any(not math.isnan(v) for v in accuracy) else {}
    own: dict[str, Any] = {}
    if any(not math.isnan(r.accuracy) for r in rounds):
        own["accuracy"] = packed(r.accuracy for r in rounds)
    if any(not math.isnan(r.ari) for r in rounds):
        own["ari"] = packed(r.ari for r in rounds)
    if [r.round for r in rounds] != list(range(1, len(rounds) + 1)):
        own["rounds"] = [r.round for r in rounds]
    own["again"] = [r.round for r in rounds if r.reclustered]
    lost = [[r.round, node, why] for r in rounds for node, why in r.lost.items()]
    own["lost"] = lost[:MOST_LOST]
    own["lost_more"] = len(lost[MOST_LOST:])
    return own


def _clusters(run: Run) -> dict[str, Any]:
    """Encode the groups and each round's clusters; a round equal to the one before is an empty string."""
    clusters = Clusters(run)
    count = len(clusters.groups)
    if count and not clusters.several:
        return {"single": 1}
    if not count or count > MOST_CLIENTS:
        return {}
    own: dict[str, Any] = {
        "index": {str(cluster): place for cluster, place in clusters.index.items()},
        "final": encode_clusters(clusters.assignment),
    }
    if clusters.known:
        own["groups"], own["names"] = encode_clusters(clusters.groups), clusters.group_names
    xy = [pd.to_numeric(clusters.frame[key], errors="coerce").to_numpy(float) for key in ("map_x", "map_y")]
    if np.isfinite(xy[0] * xy[1]).any():
        own["x"], own["y"] = (packed(_unit(axis)) for axis in xy)
    before, rows = "", []
    for assignment in (r.assignment for r in run.rounds if len(r.assignment) == count):
        row = encode_clusters(assignment)
        rows.append("" if row == before else row)
        before = row
    if len(rows) == len(run.rounds):
        own["over"] = rows
    return own


def _unit(values: Any) -> Any:
    """Scale values to [0, 1]; NaN stays."""
    low, high = np.nanmin(values), np.nanmax(values)
    return (values - low) / (high - low) if high > low else np.where(np.isnan(values), values, 0.5)


def encode_clusters(clusters: Iterable[int]) -> str:
    """Write one letter for each client: its cluster, "." for none, "?" where there are too few letters."""
    return "".join("." if c < 0 else LETTERS[c] if c < len(LETTERS) else "?" for c in clusters)


def _amounts(parts: Mapping[str, float]) -> dict[str, float]:
    return {kind: float(f"{amount:.6g}") for kind, amount in parts.items() if not math.isnan(amount)}


def _total(amount: float) -> dict[str, float]:
    return {} if math.isnan(amount) else {"in all": amount}


def _environment(table: Mapping[str, Any]) -> str:
    lines = (
        f"{key}: {value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"
        for key, value in table.items()
    )
    return "\n".join(lines)
