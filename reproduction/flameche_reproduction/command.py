"""`flameche reproduce`: draws the paper's tables and figures, after running what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from flameche.cli.options import DeviceOption, JsonOption, Overrides
from flameche.cli.output import log, out_console, print_json
from flameche.errors import BadInput, DataError
from flameche_reproduction.inventory import inventory, print_inventory

LISTS = ("--datasets", "--settings", "--methods", "--seeds")


class SpaceSeparatedLists(TyperCommand):
    """A command whose list options accept values separated by spaces: --seeds 0 1 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the values that follow a list option with commas."""
        joined: list[str] = []
        for word in args:
            behind = len(joined) > 1 and joined[-2] in LISTS and not word.startswith("-")
            if behind:
                joined[-1] = f"{joined[-1]},{word}"
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


def add_to(commands: typer.Typer) -> None:
    """Add `reproduce` to the commands of `flameche`."""
    commands.command(cls=SpaceSeparatedLists)(reproduce)


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Tables and figures, or `all`.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List them: runs there, missing, time.")] = False,
    datasets: Annotated[str, typer.Option("--datasets", help="Only these sets.")] = "",
    settings: Annotated[str, typer.Option("--settings", help="Only these: csl, fds, csf.")] = "",
    methods: Annotated[str, typer.Option("--methods", help="Only these methods or rows.")] = "",
    seeds: Annotated[str, typer.Option("--seeds", help="Only these seeds: 0..4, or a list.")] = "",
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Where tables, figures and lines go.")] = Path(
        "reproduced"
    ),
    runs: Annotated[Path | None, typer.Option("--runs", help="Where run folders go; else OUT/runs.")] = None,
    results: Annotated[Path, typer.Option("--results", help="Stored runs, as lines in *.jsonl.")] = Path(
        "results"
    ),
    stored_only: Annotated[bool, typer.Option("--stored", help="Run nothing: draw what is stored.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run again what RESULTS has; it stays as it is.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Add these runs' lines to RESULTS; what it has, stays.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes; 0: all cores, or a GPU's fill.", min=0)] = 0,
    device: DeviceOption = "auto",
    ray: Annotated[str, typer.Option("--ray", help="Address of a Ray cluster, or `local`.")] = "",
    shard: Annotated[str, typer.Option("--shard", help="Only the i-th of n shares of the runs.")] = "0/1",
    readme: Annotated[
        Path | None, typer.Option("--readme", help="Bring this README's tables up to date.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make tables and figures of the paper; runs that are not stored are run first, and can be resumed."""
    from flameche.training.device import choose_device
    from flameche_reproduction.catalogue import CATALOGUE, find_entry
    from flameche_reproduction.planned_runs import Selection, parse_seeds, parse_shard
    from flameche_reproduction.sweep import take_share, unique_runs

    choice = Selection(
        _words(datasets),
        _words(settings),
        _words(methods),
        parse_seeds([seeds]) if seeds else (),
        tuple(overrides or ()),
    )
    choice.check({name for entry in CATALOGUE.values() for name in entry.row_names})
    part = parse_shard(shard)
    if keep and choice.changes:
        raise BadInput("--keep with --set: changed runs are not the paper's; their lines stay in OUT")
    if fresh:
        _check_fresh(stored_only, keep, results, out)
    if not names and not listing and readme is None:
        raise BadInput("give the names of tables or figures, or --list")
    every = names == ["all"] or (listing and not names)
    entries = [find_entry(name) for name in (CATALOGUE if every else dict.fromkeys(names or ()))]
    if not listing and entries:
        entries = _with_runs(entries, choice)
    elsewhere = listing and device == "cuda"  # how long it would take there
    where, folder = "cuda" if elsewhere else choose_device(device), runs or out / "runs"
    stored = _stored(folder, results, out, fresh)
    if listing:
        print_inventory(inventory(entries, choice, stored, where, jobs), where, as_json)
        return
    if stored_only and entries:
        _check_stored(folder, results, out)
    if ray:
        from flameche_reproduction.ray_backend import check_ray

        check_ray(ray)
    planned = unique_runs(run for entry in entries for run in entry.plan(choice) if not run.retired)
    failed = 0
    if not stored_only and entries:
        lines = out / ("runs.jsonl" if part[1] == 1 else f"runs-{part[0]}-of-{part[1]}.jsonl")
        failed = run_missing(take_share(planned, part), stored, folder, lines, where, jobs, ray)
        if part[0] == 0:
            measure_missing(entries, stored, out)
        stored = _stored(folder, results, out, fresh)
    if keep:
        _keep(entries, choice, stored, results)
    if part[1] == 1 and entries:
        _draw(entries, choice, stored, out, as_json)
    if readme is not None:
        changed = fill_readme(readme, results)
        log.print(f"{readme}: {'brought up to date' if changed else 'up to date'}")
    if failed:
        raise typer.Exit(1)


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in text.replace(",", " ").split()))


def _with_runs(entries: Sequence[Any], choice: Any) -> list[Any]:
    """Drop tables and figures without runs of the selected sets, settings and methods."""
    kept = [entry for entry in entries if not entry.rows or entry.plan(choice)]
    lacking = ", ".join(entry.name for entry in entries if entry not in kept)
    why = f"{lacking}: no runs are of these --datasets, --settings and --methods; see --list"
    if not kept:
        raise BadInput(why)
    if lacking:
        log.print(f"left out: {why}", soft_wrap=True)
    return kept


def _check_fresh(stored_only: bool, keep: bool, results: Path, out: Path) -> None:
    if stored_only:
        raise BadInput(
            "--fresh with --stored: one runs everything again, the other nothing; give one of them"
        )
    if keep:
        raise BadInput(
            "--fresh with --keep: RESULTS has a line for each run, and none is replaced; remove what is to "
            "go from it, then give --keep without --fresh"
        )
    if out.resolve() == results.resolve():
        raise BadInput("--fresh with RESULTS as --out: what is there counts as run; choose another --out")


def _check_stored(runs: Path, results: Path, out: Path) -> None:
    if not runs.is_dir() and not any(any(place.glob("*.json*")) for place in (results, out)):
        raise BadInput(
            f"--stored: no stored runs in {results} or {out}; give --results, or run without --stored"
        )


def _stored(runs: Path, results: Path, out: Path, fresh: bool) -> Any:
    """Index the runs in OUT and RESULTS; with `fresh` those in OUT alone, to resume them."""
    from flameche_reproduction.results_index import ResultsIndex

    return ResultsIndex([runs], [out], [results]) if fresh else ResultsIndex([runs], [results, out])


def run_missing(
    planned: Sequence[Any], stored: Any, runs: Path, lines: Path, device: str, jobs: int, ray: str
) -> int:
    """Run what is not stored, with a progress bar; return the number of runs that failed."""
    from flameche.experiments.run_folder import has_checkpoint
    from flameche_reproduction.results_index import ResultsFile
    from flameche_reproduction.sweep import missing_runs, sweep
    from flameche_reproduction.sweep_progress import SweepProgress

    ResultsFile(lines).merge(stored.in_folders(planned))  # of runs that ended when nobody wrote their lines
    todo, without = _with_data(missing_runs(planned, stored))
    for remedy in without:
        log.print(f"left out: {remedy}", soft_wrap=True)
    if not todo:
        here = f"; to run again what is in {lines.parent}, choose another --out" if stored.aside else ""
        log.print(
            f"{len(planned)} run{'s' * (len(planned) != 1)} wanted; nothing to run{here}.", soft_wrap=True
        )
        return 0
    begun = sum(has_checkpoint(run.folder(runs)) for run in todo)
    with SweepProgress(todo, stored, device, len(planned), begun) as bar:
        try:
            swept = sweep(todo, runs, lines, device=device, jobs=jobs, ray=ray, on_event=bar.on_event)
        except KeyboardInterrupt:
            bar.stop()
            print("flameche: stopped; the same command goes on from the last checkpoints", file=sys.stderr)
            raise typer.Exit(130) from None
    for run, why in swept.failed:
        log.print(f"failed: {run.label}: {why} (see {run.folder(runs)}/error.txt)", soft_wrap=True)
    for run in swept.busy:
        log.print(f"left to another process: {run.label}", soft_wrap=True)
    return len(swept.failed)


def measure_missing(entries: Sequence[Any], stored: Any, out: Path) -> None:
    """Run the benchmarks whose results are not stored."""
    commands = {entry.command for entry in entries if entry.command and not stored.document(entry.file)}
    for command in sorted(commands):
        log.print(f"measuring: flameche {command}")
        words = [sys.executable, "-m", "flameche", *command.split(), "--out", str(out)]
        if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode:
            log.print(f"failed: flameche {command}")


def fill_readme(file: Path, results: Path) -> bool:
    """Update README's tables from the folder of results alone; return whether the file changed."""
    from flameche_benchmarks.crypto_tables import crypto_overview, markdown_table
    from flameche_reproduction.results_index import ResultsIndex
    from flameche_reproduction.tables.readme import agreement_block, methods_block, update_file

    stored = ResultsIndex([], [results])
    blocks = {"methods": methods_block(stored), "agreement": agreement_block(stored)}
    if (found := stored.document("bench-crypto.json")) is not None:
        blocks["crypto"] = "\n".join(markdown_table(crypto_overview(found)))
    return update_file(file, blocks)


def _with_data(todo: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return the runs whose datasets are at hand, and how to get the datasets of the others."""
    from flameche.data import available, load_dataset

    absent: dict[str, str] = {}
    for info in available():
        if not info.found and any(run.dataset == info.name for run in todo):
            try:
                load_dataset(info.name)  # fetched once, before processes would all do so
            except DataError as problem:
                absent[info.name] = str(problem)
    return [run for run in todo if run.dataset not in absent], list(absent.values())


def _keep(entries: Sequence[Any], choice: Any, stored: Any, results: Path) -> None:
    """Append the stored runs' lines to the files of RESULTS in which they are kept."""
    from flameche_reproduction.results_index import ResultsFile, ResultsIndex
    from flameche_reproduction.sweep import stored_lines

    for name in dict.fromkeys(entry.keep for entry in entries if entry.keep):
        own = [run for entry in entries if entry.keep == name for run in entry.plan(choice)]
        known = ResultsIndex([], [results])
        new = [run for run in own if known.find(run) is None]
        added = ResultsFile(results / f"{name}.jsonl").merge(stored_lines(new, stored))
        log.print(f"{results / name}.jsonl: {added} lines added")


def _draw(entries: Sequence[Any], choice: Any, stored: Any, out: Path, as_json: bool) -> None:
    """Write every table and figure, and print it."""
    from flameche_reproduction.tables import render
    from flameche_reproduction.tables.document import write

    written = {}
    for entry in entries:
        drawn = render(entry, choice, stored)
        written[entry.name] = {**drawn.as_json(), "files": [str(file) for file in write(drawn, out)]}
        if not as_json:
            out_console.print(drawn.markdown(), markup=False, soft_wrap=True)
    if as_json:
        print_json(written)
    else:
        log.print(f"Tables and figures: {out}")
