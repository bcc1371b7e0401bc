"""Makes results/clustering.md: `flameche cluster` on every set, setting, seed and rule, beside the paper.

    python reproduction/studies/clustering_table.py run [--datasets mnist ...] [--seeds 10] [--device cuda]
    python reproduction/studies/clustering_table.py table

`run` appends one line per clustering to results/clustering.jsonl and skips those that are there. Metadata
are extracted once per set, setting and seed and shared by all rules.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np

from flameche.errors import DataError
from flameche.experiments.build import build
from flameche.experiments.config import config_hash, load_experiment
from flameche.experiments.run import summarise
from flameche.experiments.run_folder import without_nan
from flameche.simulation.engine import simulate
from flameche.training.device import choose_device
from flameche_reproduction.results_index import ResultsFile, describe_provenance, of_one_device

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SETS = ["mnist", "fashion-mnist", "cifar10", "pathmnist", "mednist28"]
SETTINGS = ["csl", "fds", "csf"]
NO_SKEW = "label_skew = false"  # csf only
EARLIER = "robust"  # the default mode until `sketch` took its place; its lines are stored
RULES = {
    "default": [],
    "sketch": ["method.mode=sketch"],
    "empty = seen": ["method.empty=seen"],
    "literal": ["method.empty=seen", "method.init=vectors", "method.recluster_last=true"],
    "no reclustering": ["method.tau=0"],
    "tau = 30": ["method.tau=30"],
    "m_step = participants": ["method.m_step=participants"],
    "samples = train": ["metadata.samples=train"],
    NO_SKEW: ["data.label_skew=false"],
}
KEPT = ("dataset", "seed", "ari", "ari_final", "dbi", "ch", "config_hash", "versions", "commit", "device")
# The paper's FLAMECHE rows: ARI per setting (its three per-setting tables), DBI at tau = 10 (its
# reclustering table; only these sets).
PAPER_ARI = {
    "mnist": ("0.96 ± 0.05", "0.97 ± 0.04", "0.96 ± 0.04"),
    "fashion-mnist": ("0.97 ± 0.05", "0.95 ± 0.05", "0.99 ± 0.03"),
    "cifar10": ("0.92 ± 0.07", "0.98 ± 0.04", "0.97 ± 0.03"),
    "pathmnist": ("0.90 ± 0.19", "0.98 ± 0.04", "0.96 ± 0.05"),
    "mednist28": ("1.00 ± 0.00", "1.00 ± 0.00", "1.00 ± 0.00"),
}
PAPER_DBI = {
    "fashion-mnist": ("0.41", "0.51", "0.50"),
    "cifar10": ("1.95", "1.08", "1.53"),
    "pathmnist": ("1.51", "0.68", "0.92"),
}

HEAD = """\
# Clustering by metadata, paper mode

Made by `python reproduction/studies/clustering_table.py run` and `... table` from `clustering.jsonl`: 100
clients, 4 groups, 100 rounds, participation 20%, no training. Mean ± standard deviation (ddof = 1) over
the seeds; data, extractor and schedule all come from the seed. LeNet-5's features on MNIST and
Fashion-MNIST, ResNet-18's elsewhere. A client's metadata summarise all its samples, 50 per label.
`mednist28` stands in for TissueMNIST, which was not to be had: the paper's values beside it are
TissueMNIST's. PathMNIST's training part is cut to the first 5,000 images of each class.

| data | setting | seeds | ARI stored | ARI final E-step | at 1.00 | paper's ARI | DBI | paper's DBI | CH |
|---|---|---|---|---|---|---|---|---|---|"""
RULES_HEAD = """
## The rules compared

ARI after the final E-step, over the three settings. *default*: a cluster is empty when no participant is in
it, theta^(0) from a random partition, tau = 10, no reclustering in the last round. *literal*: the printed
algorithm, with random vectors, emptiness over all seen clients, reclustering in the last round too (its
stored ARI in brackets). *samples = train*: metadata from the 70% of its samples that a client trains on.
*sketch*: `mode = "sketch"`, the default; *robust*: the mode before it, seeds 0 to 4, of which `robust.md` has
more.
"""

SKEW_HEAD = """
## Where it differs from the paper

Under `csf` on CIFAR-10 and PathMNIST the paper's ARI is not reached. The label skew is the cause, or most of
it: the same data without skew are in the table below. A skewed client holds as few as 2 of 50 samples of a
class, so the mean of that class is mostly noise, and Algorithm 1 weighs it like any other. The paper's
own DBI under `csf` agrees with data *without* label skew; which skew its metadata saw remains open. What is
left without skew are local optima of Algorithm 1 (two groups in one cluster, one group in two).

The paper's DBI under `csl` on CIFAR-10 and PathMNIST is higher than here. It depends on which labels are
swapped, and on how phi is scaled: the paper names pairs for CIFAR-10 only, "for instance"
([docs/reproducing.md](../docs/reproducing.md)).

| data | ARI, csf | ARI, csf without skew | paper's ARI | DBI, csf | DBI, without skew | paper's DBI | seeds |
|---|---|---|---|---|---|---|---|"""


def run(datasets: list[str], settings: list[str], seeds: int, device: str, out: Path) -> int:
    """Cluster everything that is not in `out` yet; return how many sets could not be loaded."""
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["config_hash"], r["seed"]) for r in read(out)}
    missing = set()
    for name, setting, seed in itertools.product(datasets, settings, range(seeds)):
        shared = None
        for rule, changes in RULES.items():
            experiment = load_experiment(
                ROOT / "experiments" / f"{name}.toml", [f"data.heterogeneity={setting}", *changes]
            )
            if (config_hash(experiment), seed) in done or (rule == NO_SKEW and setting != "csf"):
                continue
            own = rule in (NO_SKEW, "samples = train")  # other data, other metadata
            given = None if own else shared
            try:
                setup = build(experiment, seed, device=device, training=False, metadata=given)
            except DataError as problem:
                print(problem)
                missing.add(name)
                break
            shared = shared if own else setup.world.metadata
            start = time.perf_counter()
            result = simulate(setup.method, setup.world, experiment.participants)
            seconds = round(time.perf_counter() - start, 3)
            summary = without_nan(summarise(experiment, seed, setup, result, device))
            line = {"rule": rule, "clustering_s": seconds, **{key: summary[key] for key in KEPT}}
            ResultsFile(out).add({**line, "setting": setting})
            print(name, setting, seed, rule, summary["ari"], summary["ari_final"], flush=True)
    return len(missing)


def read(file: Path) -> list[dict]:
    """Read the lines that are there."""
    return ResultsFile(file).read()


def spread(values: list[float | None]) -> str:
    """Write mean and standard deviation."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return "–"
    return f"{np.mean(known):.2f} ± {np.std(known, ddof=1):.2f}"


def table(source: Path) -> str:
    """Write the page."""
    records = read(source)

    def of(name: str, setting: str, rule: str) -> list[dict]:
        return [r for r in records if (r["dataset"], r["setting"], r["rule"]) == (name, setting, rule)]

    lines = [HEAD]
    for name in SETS:
        for i, setting in enumerate(SETTINGS):
            rows = of(name, setting, "default")
            if not rows:
                continue
            perfect = sum(r["ari_final"] == 1.0 for r in rows)
            dbi = PAPER_DBI.get(name, ("–",) * 3)[i]
            lines.append(
                f"| {name} | {setting} | {len(rows)} | {spread([r['ari'] for r in rows])} "
                f"| {spread([r['ari_final'] for r in rows])} | {perfect} | {PAPER_ARI[name][i]} "
                f"| {spread([r['dbi'] for r in rows])} | {dbi} | {np.mean([r['ch'] for r in rows]):.0f} |"
            )
    compared = [EARLIER, *(rule for rule in RULES if rule != NO_SKEW)]
    lines += [RULES_HEAD, "| data | " + " | ".join(compared) + " |", "|---" * (len(compared) + 1) + "|"]
    for name in SETS:
        cells = []
        for rule in compared:
            rows = [r for setting in SETTINGS for r in of(name, setting, rule)]
            cell = spread([r["ari_final"] for r in rows])
            if rule == "literal" and rows:
                cell += f" ({spread([r['ari'] for r in rows])})"
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [SKEW_HEAD]
    for name in SETS:
        skewed, even = of(name, "csf", "default"), of(name, "csf", NO_SKEW)
        cells = [spread([r[key] for r in rows]) for key in ("ari_final", "dbi") for rows in (skewed, even)]
        paper = (PAPER_ARI[name][2], PAPER_DBI.get(name, ("–",) * 3)[2])
        row = [name, *cells[:2], paper[0], *cells[2:], paper[1], str(len(even))]
        lines.append("| " + " | ".join(row) + " |")
    device, timed = of_one_device(records)
    seconds = [r["clustering_s"] for r in timed]
    lines += [
        "",
        f"Clustering 100 clients in 100 rounds, metadata given: median {np.median(seconds):.2f} s "
        f"in the {len(timed)} runs of one device ({device}; up to eight other processes on the machine).",
        "",
        describe_provenance(records),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--datasets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "clustering.jsonl")
    options = parser.parse_args()
    if options.what == "run":
        device = choose_device(options.device)
        sys.exit(run(options.datasets, options.settings, options.seeds, device, options.out))
    else:
        (RESULTS / "clustering.md").write_text(table(options.out))
        print(RESULTS / "clustering.md")
