"""`flameche select-k`: chooses the number of clusters before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.cli.options import (
    AlwaysFreshOption,
    DeviceOption,
    ExperimentFile,
    JsonOption,
    Overrides,
    SeedOption,
)
from flameche.cli.output import log, number, out_console, print_json, print_notes, print_rows
from flameche.cli.progress import progress_bar
from flameche.errors import BadInput


def select_k(
    experiment: ExperimentFile,
    k: Annotated[
        str, typer.Option("--k", help="Rows to show; K is chosen from 1 to the upper end.")
    ] = "1..8",
    overrides: Overrides = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="Where the figure goes.")] = None,
    fresh: AlwaysFreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the number of clusters from sums of metadata, before any training; 1 if there are no groups.

    It takes 4 clients at least, and twice scheme.min_cluster. The number is chosen in one clustering session,
    as with method.clusters = "auto".
    """
    from flameche.experiments.config import load_experiment
    from flameche.experiments.overrides import parse_range
    from flameche.experiments.select import select_experiment
    from flameche.report.figures import write_selection
    from flameche.training.device import choose_device

    least, most = parse_range(k, "--k")
    if out is not None:
        _make_folder(out)
    loaded = load_experiment(experiment, overrides or [])
    device, found = choose_device(device), []
    with progress_bar() as bar:
        for s in loaded.seeds if seed is None else (seed,):
            task = bar.add_task(f"seed {s}", total=None)

            def progress(what: str, done: int, total: int, task: Any = task, s: int = s) -> None:
                bar.update(task, description=f"seed {s}: {what}", completed=done, total=total)

            found.append(select_experiment(loaded, s, most, device=device, progress=progress))
    print_selections(found, least, as_json)
    if out is not None:
        for each in found:
            page = write_selection(each, out / f"select-k-{loaded.name}-{each['seed']}")
            log.print(f"Figure: {page}", soft_wrap=True)


def print_selections(found: list[dict[str, Any]], least: int, as_json: bool) -> None:
    """Print for each seed a table of the candidates K, from `least` on, and the recommendation."""
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for each in found:
        out_console.print(
            f"{each['dataset']} {each['setting']} · seed {each['seed']} · {each['clients']} clients · "
            f"{each['scheme']}",
            style="bold",
        )
        rows = [
            {
                "K": str(row["k"]),
                "apart": "" if row["sureness"] is None else f"{row['sureness']:+.1f}",
                "needed": "" if row["needed"] is None else f"{row['needed']:.1f}",
                "keep": "yes" if row["kept"] else "",
                "DBI": number(row["dbi"]),
                "CH": number(row["ch"], ".1f"),
                "ARI (truth)": number(row["ari"]),
            }
            for row in each["candidates"]
            if row["k"] >= least or row["k"] == each["k"]
        ]
        print_rows(rows, as_json=False)
        others = ", ".join(f"{name} {k or '–'}" for name, k in each["preferred"].items())
        out_console.print(f"\n{recommendation(each)} By other criteria: {others}.", soft_wrap=True)
        last = max(row["k"] for row in each["candidates"])
        limit = f"No more than {last} clusters can be told apart. " if last < each["most"] else ""
        sent = f"{each['bytes_up'] / 1e6:.1f} MB up, {each['bytes_down'] / 1e6:.1f} MB down"
        asked = f"{each['asked']} of {each['clients']} clients"
        out_console.print(
            f"{limit}The session opened {each['sums']} sums of {asked}; {sent}.", soft_wrap=True
        )
    print_notes(found)


def recommendation(found: dict[str, Any]) -> str:
    """State in one sentence which K is recommended, and how clear the choice is."""
    k = found["k"]
    if found["more"]:
        return f"Recommended: K = {k}, the most allowed. More clusters would fit; raise the upper end of --k."
    if k == 1:
        sure = "clearly" if found["clear"] == "no structure" else "but it is close"
        return f"Recommended: K = 1. The clients show no groups ({sure})."
    sure = "clear" if found["clear"] == "clear" else "close to the border: look at the table"
    return f"Recommended: K = {k} ({sure})."


def _make_folder(folder: Path) -> None:
    """Make the folder for the figures before any work is done, so that a bad --out fails at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder} cannot be made: {error.strerror or error}") from None
