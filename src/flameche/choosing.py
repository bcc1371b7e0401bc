"""`flameche select-k`: how many clusters there are, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flameche.display import log, number, out_console, print_json, print_rows, progress_bar
from flameche.options import (
    AlwaysFreshOption,
    DeviceOption,
    ExperimentFile,
    JsonOption,
    Overrides,
    SeedOption,
)


def select_k(
    experiment: ExperimentFile,
    k: Annotated[
        str, typer.Option("--k", help="Rows to show; K is chosen from 1 to the upper end.")
    ] = "1..8",
    overrides: Overrides = None,
    seed: SeedOption = None,
    device: DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="Where the picture goes.")] = None,
    fresh: AlwaysFreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the number of clusters from sums of metadata, before any training; 1 if there are no groups.

    It takes 4 clients at least, and twice scheme.min_cluster. One clustering session chooses it, as with
    method.clusters = "auto".
    """
    from flameche.experiments.config import load_experiment
    from flameche.experiments.overrides import parse_range
    from flameche.experiments.select import select_experiment
    from flameche.report.selection import prepare_folder, write_selection
    from flameche.training.device import choose_device

    least, most = parse_range(k, "--k")
    if out is not None:
        prepare_folder(out)
    described = load_experiment(experiment, overrides or [])
    where, found = choose_device(device), []
    with progress_bar() as bar:
        for s in described.seeds if seed is None else (seed,):
            task = bar.add_task(f"seed {s}", total=None)

            def progress(what: str, done: int, total: int, task: Any = task, s: int = s) -> None:
                bar.update(task, description=f"seed {s}: {what}", completed=done, total=total)

            found.append(select_experiment(described, s, most, device=where, progress=progress))
    print_selections(found, least, as_json)
    if out is not None:
        for each in found:
            page = write_selection(each, out / f"select-k-{described.name}-{each['seed']}")
            log.print(f"Picture: {page}", soft_wrap=True)


def print_selections(found: list[dict[str, Any]], least: int, as_json: bool) -> None:
    """Print, for each seed, a row per number of clusters and the recommendation."""
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
        out_console.print(f"\n{verdict(each)} By other criteria: {others}.", soft_wrap=True)
        last = max(row["k"] for row in each["candidates"])
        few = f"No more than {last} clusters can be told apart. " if last < each["most"] else ""
        sent = f"{each['bytes_up'] / 1e6:.1f} MB up, {each['bytes_down'] / 1e6:.1f} MB down"
        asked = f"{each['asked']} of {each['clients']} clients"
        out_console.print(f"{few}It opened {each['sums']} sums of {asked}; {sent}.", soft_wrap=True)
    for note in sorted({note for each in found for note in each["notes"]}):
        log.print(f"note: {note}", soft_wrap=True)


def verdict(found: dict[str, Any]) -> str:
    """Say in a sentence which K is recommended, and how clear that is."""
    k = found["k"]
    if found["more"]:
        return f"Recommended: K = {k}, the most allowed; more would fit, raise the range."
    if k == 1:
        sure = "clearly" if found["clear"] == "no structure" else "but it is close"
        return f"Recommended: K = 1. The clients show no groups ({sure})."
    sure = "clear" if found["clear"] == "clear" else "close to the border: look at the table"
    return f"Recommended: K = {k} ({sure})."
