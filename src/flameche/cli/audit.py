"""`flameche audit`: what each party of a finished run could work out from the sums that were opened."""

from __future__ import annotations

from typing import Any

from flameche.cli.options import JsonOption, RunFolder
from flameche.cli.output import log, out_console, print_json, print_rows
from flameche.registry import SCHEMES

LEGEND = (
    "Clients solved: their metadata can be computed from the sums; a client uses its own metadata, too.",
    "Leverage: how close a combination of the sums comes to a single client, from 0 (far) to 1 (solved).",
)


def audit(run: RunFolder, as_json: JsonOption = False) -> None:
    """Show what could be learned from a run: sums opened, numbers about each client, clients solved."""
    from flameche.experiments.leakage import audit_run

    found = audit_run(run)
    if as_json:
        print_json(found)
        return
    print_audit(found)


def print_audit(found: dict[str, Any]) -> None:
    """Print the result of `audit_run`: a row for each party, then a row for each kind of opened sum."""
    out_console.print(
        f"{found['clients']} clients · scheme {found['scheme']} · no sum over fewer than "
        f"{found['min_cluster']} · {_noise(found['noise'])}",
        style="bold", soft_wrap=True,
    )  # fmt: skip
    rows = []
    for party, name in (("server", "the server"), ("client", _client_party(found["scheme"]))):
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
    for line in LEGEND:
        out_console.print(line, style="dim", soft_wrap=True)
    rows = [
        {"opened": what, "sums": str(sums["sums"]), "clients in a sum": _clients_in_a_sum(sums)}
        for what, sums in found["sums"].items()
    ]
    if rows:
        print_rows(rows, as_json=False)
    for note in found["notes"]:
        log.print(f"note: {note}", soft_wrap=True)


def _client_party(scheme: str) -> str:
    """Name the party that is a client: under most schemes it has the key that opens sums."""
    return "a curious client" if SCHEMES[scheme].opened_by == "server" else "a key holder"


def _clients_in_a_sum(sums: dict[str, int]) -> str:
    few, many = sums["smallest_set"], sums["largest_set"]
    return str(few) if few == many else f"{few} to {many}"


def _noise(noise: dict[str, Any] | None) -> str:
    """Describe the noise that clients added to their metadata."""
    if noise is None:
        return "no noise"
    seeded = ", seeded: for experiments alone" if noise["noise"] == "seeded" else ""
    return (
        f"noise at the source, epsilon = {noise['epsilon_spent']:.3g} at delta = {noise['delta']:g}{seeded}"
    )
