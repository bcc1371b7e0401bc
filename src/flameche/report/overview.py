"""The top of the page: a few headline numbers, and a table of methods by datasets and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from flameche.data.heterogeneity import SETTING_TITLES
from flameche.experiments.provenance import short_device
from flameche.report.formats import ABSENT, human_seconds
from flameche.report.markup import NOT_RUN, dot
from flameche.report.runs import Run
from flameche.report.tables import Series, accuracy_cell, group_series, mean_cell, summary_of

Pair = tuple[str, str]  # dataset and setting
DATASET_TITLES = {  # in the order of the page
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "tissuemnist": "TissueMNIST",
    "mednist28": "MedNIST28",
    "pathmnist": "PathMNIST",
    "digits": "digits",
}
PERFECT = 0.995  # from here on an ARI is printed as 1.00


@dataclass(frozen=True)
class Tile:
    """A headline number, what it counts, and a remark in small print."""

    number: str
    what: str
    more: str = ""


@dataclass(frozen=True)
class Score:
    """Mean accuracy and ARI of one method on one dataset and setting.

    Attributes:
        accuracy: in percent, NaN where there is none.
        spread: the standard deviation of the accuracy, None with one seed.
        ari: NaN where there is none.
        ari_text: the ARI as it is printed.
        tooltip: both in words.
        diverged: whether training diverged under any seed.
    """

    accuracy: float
    spread: float | None
    ari: float
    ari_text: str
    tooltip: str
    diverged: bool = False


class Matrix:
    """The table of methods by datasets and settings: accuracy and ARI, means over the seeds."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.series = group_series(runs)
        self.pairs = ordered({(s.first.dataset, s.first.setting) for s in self.series})
        self.rows: dict[str, dict[Pair, Score]] = {}
        self.methods: dict[str, str] = {}
        for one in self.series:
            name = self._name(one)
            self.methods[name] = one.first.method
            self.rows.setdefault(name, {})[one.first.dataset, one.first.setting] = _score(one)

    def _name(self, one: Series) -> str:
        """Return the series' name, with its scheme where the method ran under several."""
        schemes = {
            other.first.scheme
            for other in self.series
            if other.first.label == one.first.label
            and (other.first.dataset, other.first.setting) == (one.first.dataset, one.first.setting)
        }
        return f"{one.name}, {one.first.scheme}" if len(schemes) > 1 else one.name

    def html(self, places: Mapping[Pair, str]) -> Markup:
        """Write it as HTML; `places` has the id of the page's section on each dataset and setting."""
        sets: dict[str, int] = {}
        for dataset, _ in self.pairs:
            sets[dataset] = sets.get(dataset, 0) + 1
        above = "".join(
            f'<th scope="colgroup" colspan="{span}" class="group">{escape(dataset_title(dataset))}</th>'
            for dataset, span in sets.items()
        )
        first = {next(pair for pair in self.pairs if pair[0] == dataset) for dataset in sets}
        below = "".join(
            f'<th scope="col" class="num{" first" if pair in first else ""}">'
            f'<a href="#{places[pair]}" title="{escape(SETTING_TITLES.get(pair[1], pair[1]))}">'
            f"{escape(pair[1])}</a></th>"
            for pair in self.pairs
        )
        body = "\n".join(
            f'<tr><th scope="row">{dot(self.methods[name], name)}{escape(name)}</th>'
            + "".join(self._cell(name, pair, pair in first) for pair in self.pairs)
            + "</tr>"
            for name in self.rows
        )
        return Markup(
            '<div class="scroll" tabindex="0" role="region" aria-label="Methods by sets and settings">'
            f'<table class="matrix"><thead><tr class="groups"><td></td>{above}</tr>'
            f'<tr><th scope="col">Method</th>{below}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
        )

    def _cell(self, name: str, pair: Pair, first: bool) -> str:
        score = self.rows[name].get(pair)
        edge = " first" if first else ""
        if score is None:
            return f'<td class="num none{edge}">{NOT_RUN}</td>'
        missing = "diverged" if score.diverged else ABSENT
        accuracy = missing if math.isnan(score.accuracy) else f"{score.accuracy:.1f}"
        if accuracy != missing and self.methods[name] != "oracle" and accuracy == self._best(pair):
            accuracy = f"<b>{accuracy}</b>"
        if score.spread is not None:
            accuracy += f'<span class="sd"> ± {score.spread:.1f}</span>'
        known = not math.isnan(score.ari)
        value = "" if math.isnan(score.accuracy) else f' data-value="{score.accuracy:.6g}"'
        level = f' style="--a:{min(max(score.ari, 0.0), 1.0):.2f}"' if known else ""
        return (
            f'<td class="num score{edge}"{value} title="{escape(score.tooltip)}">{accuracy}'
            f"<small{level}>{score.ari_text}</small></td>"
        )

    def _best(self, pair: Pair) -> str:
        scores = [
            row[pair].accuracy
            for name, row in self.rows.items()
            if pair in row and self.methods[name] != "oracle" and not math.isnan(row[pair].accuracy)
        ]
        return f"{max(scores):.1f}" if len(scores) > 1 else ""

    def flameche_row(self) -> str | None:
        """Return FLAMECHE's row that can be compared with FedAvg and Oracle in most places, or None.

        Among rows with as many, the default mode comes first.
        """
        rows = [name for name in self.rows if self.methods[name] == "flameche"]

        def compared(name: str) -> tuple[int, int, bool]:
            places = len(self.gap(name, "fedavg")) + len(self.gap(name, "oracle"))
            return places, len(self.rows[name]), not any(mode in name for mode in ("paper", "former"))

        return max(rows, key=compared, default=None)

    def gap(self, name: str, method: str) -> list[float]:
        """Return by how many points a row's accuracy is above another method's, where both have one."""
        other = next((row for row in self.rows if self.methods[row] == method), None)
        if other is None:
            return []
        gaps = [
            self.rows[name][pair].accuracy - self.rows[other][pair].accuracy
            for pair in self.rows[name]
            if pair in self.rows[other]
        ]
        return [gap for gap in gaps if not math.isnan(gap)]


def dataset_title(dataset: str) -> str:
    """Return a dataset's name as it is printed."""
    return DATASET_TITLES.get(dataset, dataset)


def ordered(pairs: Iterable[Pair]) -> list[Pair]:
    """Sort datasets and settings: known ones in the order of their titles, then others by name."""
    sets, settings = list(DATASET_TITLES), list(SETTING_TITLES)

    def key(pair: Pair) -> tuple[int, str, int, str]:
        dataset, setting = pair
        return (
            sets.index(dataset) if dataset in sets else len(sets),
            dataset,
            settings.index(setting) if setting in settings else len(settings),
            setting,
        )

    return sorted(pairs, key=key)


def tiles(runs: Sequence[Run], matrix: Matrix) -> list[Tile]:
    """Make the headline: the number of runs, groups found, accuracy compared with the bounds."""
    found = [Tile(f"{len(runs):,}", "run" if len(runs) == 1 else "runs", _summary_line(runs))]
    if name := matrix.flameche_row():
        known = [score.ari for score in matrix.rows[name].values() if not math.isnan(score.ari)]
        if known:
            right = sum(value >= PERFECT for value in known)
            what = "setting" if len(known) == 1 else "settings"
            found.append(Tile(f"{right} of {len(known)}", what, f"in which {name} finds all groups"))
        for method, bound in (("fedavg", "FedAvg"), ("oracle", "Oracle")):
            if gaps := matrix.gap(name, method):
                mean = math.fsum(gaps) / len(gaps)
                above = "above" if mean >= 0 else "below"
                found.append(Tile(f"{abs(mean):.1f}", f"points {above} {bound}", "mean accuracy of " + name))
    return found


def _summary_line(runs: Sequence[Run]) -> str:
    summaries = [summary_of(run) for run in runs]
    spent: dict[str, float] = {}
    for summary in summaries:
        if not math.isnan(summary.wall_s):
            device = short_device(summary.device)
            spent[device] = spent.get(device, 0.0) + summary.wall_s
    walls = [f"{human_seconds(seconds)} on {device}" for device, seconds in spent.items() if seconds]
    counts = (
        (len({summary.method for summary in summaries}), "method"),
        (len({summary.seed for summary in summaries}), "seed"),
    )
    parts = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts]
    return " · ".join([*parts, *walls])


def _score(one: Series) -> Score:
    accuracy = accuracy_cell(one.runs, 2)
    ari = mean_cell(one.values(lambda s: s.ari), 2)
    seeds = f"{len(one.runs)} seed{'s' if len(one.runs) > 1 else ''}"
    tooltip = f"accuracy in %: {accuracy.text}, ARI {ari.text}; {seeds}"
    return Score(
        math.nan if accuracy.value is None else accuracy.value,
        accuracy.spread,
        math.nan if ari.value is None else ari.value,
        ari.text,
        tooltip,
        any(summary_of(run).diverged for run in one.runs),
    )
