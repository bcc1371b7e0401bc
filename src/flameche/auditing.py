"""`flameche audit`: what each party of a finished run could work out from the sums that were opened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.display import log, out_console, print_json, print_rows
from flameche.options import JsonOption

EXPLAINED = (
    "Clients solved: their own metadata follow from the sums; a client uses what it knows of itself, too.",
    "Leverage: how near the sums come to holding one client alone, 0 far, 1 solved.",
)


def audit(
    run: Annotated[Path, typer.Argument(help="A finished run: runs/<name>/<hash>/<seed>.", metavar="RUN")],
    as_json: JsonOption = False,
) -> None:
    """Tell what could be learned from a run: sums opened, numbers of each client, clients solved."""
    from flameche.experiments.leakage import audit_run

    found = audit_run(run)
    if as_json:
        print_json(found)
        return
    print_audit(found)


def print_audit(found: dict[str, Any]) -> None:
    """Print what each party could learn, and what was opened."""
    out_console.print(
        f"{found['clients']} clients · scheme {found['scheme']} · no sum over fewer than "
        f"{found['min_cluster']} · {_noise(found['noise'])}",
        style="bold", soft_wrap=True,
    )  # fmt: skip
    rows = []
    for party, name in (("server", "the server"), ("client", _client(found["scheme"]))):
        leak = found[party]
        rows.append(
            {
                "who": name,
                "sums seen": str(leak["sums"]),
                "numbers of a client": str(leak["numbers_per_client"]),
                "of them over some only": str(leak["numbers_over_fewer"]),
                "smallest set": str(leak["smallest_set"] or "–"),
                "rank": str(leak["rank"]),
                "largest leverage": f"{leak['leverage']:.2f}",
                "clients solved": f"{leak['solved']} of {found['clients']}",
            }
        )
    print_rows(rows, as_json=False)
    for line in EXPLAINED:
        out_console.print(line, style="dim", soft_wrap=True)
    rows = [
        {"opened": what, "sums": str(of["sums"]), "clients in a sum": _range(of)}
        for what, of in found["sums"].items()
    ]
    if rows:
        print_rows(rows, as_json=False)
    for note in found["notes"]:
        log.print(f"note: {note}", soft_wrap=True)


def _client(scheme: str) -> str:
    """Name a party that is a client: under most schemes it has the key that opens sums."""
    return "a curious client" if scheme in ("plain", "secagg") else "a key holder"


def _range(of: dict[str, int]) -> str:
    few, many = of["smallest_set"], of["largest_set"]
    return str(few) if few == many else f"{few} to {many}"


def _noise(told: dict[str, Any] | None) -> str:
    """Say what noise is in the terms of the sums."""
    if told is None:
        return "no noise"
    seeded = ", seeded: for experiments alone" if told["noise"] == "seeded" else ""
    return f"noise at the source, epsilon = {told['epsilon_spent']:.3g} at delta = {told['delta']:g}{seeded}"
