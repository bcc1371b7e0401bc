"""`flameche reproduce`: the paper's tables and figures by name, from stored runs; what is missing is run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from flameche.display import log, out_console, print_json
from flameche.errors import BadInput, DataError
from flameche.listing import inventory, print_inventory
from flameche.options import DeviceOption, JsonOption, Overrides

LISTS = ("--datasets", "--settings", "--methods", "--seeds")


class Spaced(TyperCommand):
    """A command whose lists may be written with spaces: --seeds 0 1 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the words behind a list's option by commas."""
        joined: list[str] = []
        for word in args:
            behind = len(joined) > 1 and joined[-2] in LISTS and not word.startswith("-")
            if behind:
                joined[-1] = f"{joined[-1]},{word}"
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


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
    from flameche.experiments.paper import ENTRIES, Choice, entry_named
    from flameche.experiments.paper.plan import parse_seeds, parse_shard
    from flameche.experiments.sweep import deal, unique
    from flameche.training.device import choose_device

    choice = Choice(
        _words(datasets),
        _words(settings),
        _words(methods),
        parse_seeds([seeds]) if seeds else (),
        tuple(overrides or ()),
    )
    choice.check({name for entry in ENTRIES.values() for name in entry.row_names})
    part = parse_shard(shard)
    if keep and choice.changes:
        raise BadInput("--keep with --set: changed runs are not the paper's; their lines stay in OUT")
    if fresh:
        _check_fresh(stored_only, keep, results, out)
    if not names and not listing and readme is None:
        raise BadInput("give the names of tables or figures, or --list")
    every = names == ["all"] or (listing and not names)
    entries = [entry_named(name) for name in (ENTRIES if every else dict.fromkeys(names or ()))]
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
        from flameche.experiments.ray_sweep import check_ray

        check_ray(ray)
    planned = unique(run for entry in entries for run in entry.plan(choice) if not run.gone)
    failed = 0
    if not stored_only and entries:
        lines = out / ("runs.jsonl" if part[1] == 1 else f"runs-{part[0]}-of-{part[1]}.jsonl")
        failed = run_missing(deal(planned, part), stored, folder, lines, where, jobs, ray)
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
    """Leave out what has no runs of the sets, settings and methods that are wanted."""
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
    """Find runs in OUT and RESULTS, or in OUT alone, where what was killed goes on."""
    from flameche.experiments.stored import Stored

    return Stored([runs], [out], [results]) if fresh else Stored([runs], [results, out])


def run_missing(
    planned: Sequence[Any], stored: Any, runs: Path, lines: Path, device: str, jobs: int, ray: str
) -> int:
    """Run what is not stored, with a bar; give how many runs failed."""
    from flameche.experiments.store import has_checkpoint
    from flameche.experiments.stored import Lines
    from flameche.experiments.sweep import missing, sweep
    from flameche.watching import SweepBar

    Lines(lines).merge(stored.in_folders(planned))  # of runs that ended when nobody wrote their lines
    todo, without = _with_data(missing(planned, stored))
    for remedy in without:
        log.print(f"left out: {remedy}", soft_wrap=True)
    if not todo:
        here = f"; to run again what is in {lines.parent}, choose another --out" if stored.aside else ""
        log.print(
            f"{len(planned)} run{'s' * (len(planned) != 1)} wanted; nothing to run{here}.", soft_wrap=True
        )
        return 0
    begun = sum(has_checkpoint(run.folder(runs)) for run in todo)
    with SweepBar(todo, stored, device, len(planned), begun) as bar:
        try:
            swept = sweep(todo, runs, lines, device=device, jobs=jobs, ray=ray, watch=bar.watch)
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
    """Run the benchmarks whose documents are not there."""
    commands = {entry.command for entry in entries if entry.command and not stored.document(entry.file)}
    for command in sorted(commands):
        log.print(f"measuring: flameche {command}")
        words = [sys.executable, "-m", "flameche", *command.split(), "--out", str(out)]
        if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode:
            log.print(f"failed: flameche {command}")


def fill_readme(file: Path, results: Path) -> bool:
    """Write README's tables from what is in the folder of results alone."""
    from flameche.bench.tables import markdown_table, overview
    from flameche.experiments.stored import Stored
    from flameche.report.paper.readme import agreement_block, fill_file, methods_block

    stored = Stored([], [results])
    blocks = {"methods": methods_block(stored), "agreement": agreement_block(stored)}
    if (found := stored.document("bench-crypto.json")) is not None:
        blocks["crypto"] = "\n".join(markdown_table(overview(found)))
    return fill_file(file, blocks)


def _with_data(todo: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Keep the runs whose data are here or can be fetched; also say how to get the others'."""
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
    """Add the lines of what is stored to the compact files they belong to."""
    from flameche.experiments.stored import Lines, Stored
    from flameche.experiments.sweep import lines_of

    for name in dict.fromkeys(entry.keep for entry in entries if entry.keep):
        own = [run for entry in entries if entry.keep == name for run in entry.plan(choice)]
        known = Stored([], [results])
        new = [run for run in own if known.find(run) is None]
        added = Lines(results / f"{name}.jsonl").merge(lines_of(new, stored))
        log.print(f"{results / name}.jsonl: {added} lines added")


def _draw(entries: Sequence[Any], choice: Any, stored: Any, out: Path, as_json: bool) -> None:
    """Write every table and figure, and print it."""
    from flameche.report.paper import render, write

    written = {}
    for entry in entries:
        drawn = render(entry, choice, stored)
        written[entry.name] = {**drawn.told(), "files": [str(file) for file in write(drawn, out)]}
        if not as_json:
            out_console.print(drawn.markdown(), markup=False, soft_wrap=True)
    if as_json:
        print_json(written)
    else:
        log.print(f"Tables and figures: {out}")
