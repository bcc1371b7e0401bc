"""`flameche assign`: assigns a client that comes after training to a cluster, and writes its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.cli.options import DeviceOption, JsonOption, RunFolder
from flameche.cli.output import log, number, out_console, print_json, print_rows


def assign(
    run: RunFolder,
    data: Annotated[
        Path,
        # A backslash keeps rich from taking a bracket for markup.
        typer.Option("--data", help=r"The client's npz: x \[n H W], \[n Ch H W] or \[n H W Ch]; y \[n]."),
    ],
    client: Annotated[
        str | None, typer.Option("--client", help="The client's name; by default the file's.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", help="Write its cluster's model here: FILE.pt2 (runs anywhere), FILE.pt (weights)."
        ),
    ] = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Assign a new client to a cluster after training, by one E-step; nothing is retrained."""
    from flameche.experiments.assign_client import assign_new_client
    from flameche.training.device import choose_device

    found = assign_new_client(run, data, client=client, model=model, device=choose_device(device))
    if as_json:
        print_json(found)
        return
    print_assignment(found)


def print_assignment(found: dict[str, Any]) -> None:
    """Print the client's cluster, and a table that compares the client with every cluster."""
    sure = "" if found["sure"] is None else f" · sure {100 * found['sure']:.1f}%"
    margin = "" if found["margin"] is None else f" · margin {found['margin']:.4f}"
    out_console.print(
        f"{found['client']}: cluster {found['cluster']}{margin}{sure} · {found['samples']} samples",
        style="bold", soft_wrap=True,
    )  # fmt: skip
    accuracy = found["accuracy"] or [None] * len(found["distances"])
    rows = []
    for k, distance in enumerate(found["distances"]):
        own = k == found["cluster"]
        rows.append(
            {
                "cluster": f"{k} {'*' if own else ''}".strip(),
                "distance": number(distance, ".4f"),
                "its clients": number(found["clients_distances"][k], ".4f"),
                "reach": number(found["reaches"][k], ".4f"),
                "clients": number(found["sizes"][k], "d"),
                "acc %": number(accuracy[k] and 100 * accuracy[k]),
            }
        )
    print_rows(rows, as_json=False)
    if found["model"]:
        log.print(f"Model: {found['model']}", soft_wrap=True)
    for note in found["notes"]:
        log.print(f"note: {note}", soft_wrap=True)
