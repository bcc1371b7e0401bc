"""The tables of a report: quality and cost of every configuration.

A row is one configuration, averaged over its seeds: mean ± standard deviation with n - 1 in the denominator.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flameche.experiments.provenance import NOT_RECORDED
from flameche.report.formats import ABSENT, Cell, Column, Table, amount, three_digits
from flameche.report.runs import Run, Summary


@dataclass(frozen=True)
class Series:
    """The finished runs of one configuration, one for each seed, under a name that no other series has."""

    runs: tuple[Run, ...]
    name: str

    @property
    def first(self) -> Summary:
        """Return the first seed's summary, for what all seeds share: method, dataset, setting, scheme."""
        return summary_of(self.runs[0])

    def values(self, pick: Callable[[Summary], float]) -> list[float]:
        """Return one number for each seed."""
        return [pick(summary_of(run)) for run in self.runs]

    def seconds(self, pick: Callable[[Summary], float], device: str) -> list[float]:
        """Return one number for each seed, NaN where it was measured on another device."""
        return self.values(lambda summary: pick(summary) if _device(summary) == device else math.nan)


DIVERGED = "diverged: a model ended with NaN or infinite weights; lower training.lr and run it again"

# The order in which methods are listed: the paper's own first, its two bounds, then by name.
_ORDER = {"flameche": 0, "oracle": 1, "fedavg": 2}


def summary_of(run: Run) -> Summary:
    """Return the summary of a finished run."""
    if run.summary is None:
        raise ValueError(f"{run.place} is {run.status}")
    return run.summary


def group_series(runs: Iterable[Run]) -> list[Series]:
    """Group finished runs by configuration, sorted by dataset, setting, method and scheme.

    Different configurations of one method and scheme are never averaged; their names say in what they differ.
    """
    by_key: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if s := run.summary:
            order = (_ORDER.get(s.method, 3), s.label)
            key = (s.dataset, s.setting, order, s.method, s.scheme, run.experiment)
            by_key.setdefault(key, []).append(run)
    rivals: dict[tuple[Any, ...], list[list[Run]]] = {}
    for key in sorted(by_key):
        seeds = sorted(by_key[key], key=lambda run: summary_of(run).seed)
        rivals.setdefault(key[:5], []).append(seeds)
    series = []
    for same in rivals.values():
        names = _distinct([seeds[0] for seeds in same])
        series += [Series(tuple(seeds), name) for seeds, name in zip(same, names, strict=True)]
    return series


def summary_table(runs: Iterable[Run]) -> Table:
    """Make the table of quality and cost; the best accuracy of each setting, apart from Oracle's, is bold.

    Dataset and setting have columns of their own when the runs hold more than one pair.
    """
    series = group_series(runs)
    device = _device_of_most(series)
    pairs = {(s.first.dataset, s.first.setting) for s in series}
    best = {pair: _best([s for s in series if (s.first.dataset, s.first.setting) == pair]) for pair in pairs}
    rows = []
    for s in series:
        timed = _timed(s, device)
        winner = _mean_text(s.values(_percent), 2) == best[s.first.dataset, s.first.setting]
        rows.append(
            (
                *_where(s, pairs),
                Cell(s.name),
                Cell(s.first.scheme),
                Cell(str(len(s.runs)), len(s.runs)),
                mean_cell(s.values(lambda x: x.ari), 2),
                mean_cell(s.values(lambda x: x.ari_final), 2),
                accuracy_cell(s.runs, 2, bold=winner and s.first.method != "oracle"),
                mean_cell(s.values(lambda x: x.dbi), 2),
                mean_cell(s.values(lambda x: x.ch), 1),
                mean_cell(s.values(lambda x: x.bytes_up / 1e6), None),
                mean_cell(s.values(lambda x: x.bytes_down / 1e6), None),
                mean_cell(s.seconds(_wall, timed), None),
                Cell(timed),
            )
        )
    columns = (
        *_where_columns(pairs),
        Column("Method", "method"),
        Column("Scheme", "scheme"),
        Column("Seeds", "seeds", numeric=True),
        Column("ARI, stored", "ari", numeric=True, spread=True),
        Column("ARI, final E-step", "ari_final", numeric=True, spread=True),
        Column("Accuracy, %", "accuracy_percent", numeric=True, spread=True),
        Column("DBI", "dbi", numeric=True, spread=True),
        Column("CH", "ch", numeric=True, spread=True),
        Column("MB up", "mb_up", numeric=True, spread=True),
        Column("MB down", "mb_down", numeric=True, spread=True),
        Column("Seconds", "seconds", numeric=True, spread=True),
        Column("Seconds on", "seconds_on"),
    )
    broken = any(summary_of(run).diverged for s in series for run in s.runs)
    return Table(columns, tuple(rows), DIVERGED if broken else "")


def accuracy_cell(runs: Sequence[Run], digits: int, *, bold: bool = False) -> Cell:
    """Make a cell with the mean accuracy in percent; it says how many seeds diverged."""
    summaries = [summary_of(run) for run in runs]
    made = mean_cell([_percent(summary) for summary in summaries], digits, bold=bold)
    count = sum(summary.diverged for summary in summaries)
    if not count:
        return made
    return replace(made, text="diverged" if made.value is None else f"{made.text}, {count} diverged")


def cost_table(runs: Iterable[Run]) -> Table:
    """Make the table of costs: bytes by purpose, seconds of server and clients, tuning, oracle knowledge."""
    series = group_series(runs)
    device = _device_of_most(series)
    pairs = {(s.first.dataset, s.first.setting) for s in series}
    rows = []
    for s in series:
        known = sorted({item for run in s.runs for item in summary_of(run).ledger.oracle_knowledge})
        timed = _timed(s, device)
        tuning = max(summary_of(run).ledger.tuning_runs for run in s.runs)
        rows.append(
            (
                *_where(s, pairs),
                Cell(s.name),
                Cell(s.first.scheme),
                Cell(str(len(s.runs)), len(s.runs)),
                mean_cell(s.values(lambda x: _part(x.ledger.up, "model") / 1e6), None),
                mean_cell(s.values(lambda x: _rest(x.ledger.up, "model") / 1e6), None),
                mean_cell(s.values(lambda x: _part(x.ledger.down, "model") / 1e6), None),
                mean_cell(s.values(lambda x: _rest(x.ledger.down, "model") / 1e6), None),
                mean_cell(s.seconds(lambda x: _total(x.ledger.server_seconds), timed), None),
                mean_cell(s.seconds(lambda x: _total(x.ledger.client_seconds), timed), None),
                Cell(timed),
                Cell(str(tuning), tuning),
                Cell(", ".join(known) or "none"),
            )
        )
    columns = (
        *_where_columns(pairs),
        Column("Method", "method"),
        Column("Scheme", "scheme"),
        Column("Seeds", "seeds", numeric=True),
        Column("MB up, models", "mb_up_models", numeric=True, spread=True),
        Column("MB up, clustering", "mb_up_clustering", numeric=True, spread=True),
        Column("MB down, models", "mb_down_models", numeric=True, spread=True),
        Column("MB down, clustering", "mb_down_clustering", numeric=True, spread=True),
        Column("Server seconds", "server_seconds", numeric=True, spread=True),
        Column("Client seconds", "client_seconds", numeric=True, spread=True),
        Column("Seconds on", "seconds_on"),
        Column("Tuning runs", "tuning_runs", numeric=True),
        Column("Knows from an oracle", "oracle_knowledge"),
    )
    return Table(columns, tuple(rows))


def seed_span(counts: Iterable[int]) -> str:
    """Write how many seeds means are taken over, such as "5 seeds" or "1 to 5 seeds"."""
    known = sorted(set(counts))
    if not known:
        return "no seeds"
    low, high = known[0], known[-1]
    return f"{high} seed{'s' * (high != 1)}" if low == high else f"{low} to {high} seeds"


def mean_cell(values: Sequence[float], digits: int | None, *, bold: bool = False) -> Cell:
    """Make a cell with mean ± sd (n - 1) over the seeds that have the value; it says when some do not.

    Args:
        values: one for each seed, NaN where a seed has none.
        digits: after the point; None for two, for three significant ones below 1, for none above 1,000.
        bold: whether the text is bold.
    """
    present = [value for value in values if not math.isnan(value)]
    if not present:
        return Cell(ABSENT)
    mean = math.fsum(present) / len(present)
    sd = None
    if len(present) > 1:
        sd = math.sqrt(math.fsum((value - mean) ** 2 for value in present) / (len(present) - 1))
    text = _decimals(mean, digits)
    if sd is not None:
        text += f" ± {sd:,.{len(text.partition('.')[2])}f}"
    if len(present) < len(values):
        text += f" ({len(present)} of {len(values)} seeds)"
    return Cell(text, mean, sd, bold, len(present))


def _decimals(value: float, digits: int | None) -> str:
    if digits is None and abs(value) >= 999.5:
        return amount(value)
    if digits is None:
        return three_digits(value) if 0 < abs(value) < 0.995 else f"{value:.2f}"
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no -0.00


def _percent(summary: Summary) -> float:
    return 100 * summary.accuracy


def _device(summary: Summary) -> str:
    return summary.device or NOT_RECORDED


def _device_of_most(series: Iterable[Series]) -> str:
    """Return the device of most runs; a table shows its seconds, as those of several are never averaged."""
    counts = Counter(_device(summary_of(run)) for s in series for run in s.runs)
    return counts.most_common(1)[0][0] if counts else NOT_RECORDED


def _timed(series: Series, device: str) -> str:
    """Return the device of a row's seconds: the table's, or its own if it has no runs on that one."""
    return (
        device
        if any(_device(summary_of(run)) == device for run in series.runs)
        else _device_of_most([series])
    )


def _wall(summary: Summary) -> float:
    return _total(summary.seconds) if math.isnan(summary.wall_s) else summary.wall_s


def _total(parts: Mapping[str, float]) -> float:
    return math.fsum(parts.values()) if parts else math.nan


def _part(parts: Mapping[str, float], name: str) -> float:
    return parts.get(name, 0.0) if parts else math.nan


def _rest(parts: Mapping[str, float], name: str) -> float:
    return math.fsum([amount for kind, amount in parts.items() if kind != name]) if parts else math.nan


def _best(series: Iterable[Series]) -> str:
    means = [_mean_text(s.values(_percent), 2) for s in series if s.first.method != "oracle"]
    return max((text for text in means if text != ABSENT), key=float, default="")


def _mean_text(values: Sequence[float], digits: int) -> str:
    """Return the mean as it is printed, so that equal numbers in print are bold together."""
    cell = mean_cell(values, digits)
    return ABSENT if cell.value is None else f"{cell.value:.{digits}f}"


def _where(series: Series, pairs: set[tuple[str, str]]) -> tuple[Cell, ...]:
    return (Cell(series.first.dataset), Cell(series.first.setting)) if len(pairs) > 1 else ()


def _where_columns(pairs: set[tuple[str, str]]) -> tuple[Column, ...]:
    return (Column("Dataset", "dataset"), Column("Setting", "setting")) if len(pairs) > 1 else ()


def _distinct(runs: Sequence[Run]) -> list[str]:
    """Name each configuration by its label, with the config values that differ if several share the label."""
    labels = [summary_of(run).label for run in runs]
    if len(runs) == 1:
        return labels
    flat = [dict(_flatten(run.config)) for run in runs]
    keys = [
        key
        for key in sorted({key for config in flat for key in config})
        if key not in ("name", "seeds") and len({config.get(key) for config in flat}) > 1
    ]
    names = []
    for run, label, config in zip(runs, labels, flat, strict=True):
        differs = [f"{key}={config[key]}" for key in keys if key in config]
        names.append(f"{label} ({', '.join(differs[:3]) or run.experiment})")
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{label} ({run.experiment})"
        for name, run, label in zip(names, runs, labels, strict=True)
    ]


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
