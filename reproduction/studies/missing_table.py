"""Makes results/missing.md: the default mode where clients lack classes, beside the nearest true centroid.

    python reproduction/studies/missing_table.py run [--cache FOLDER]
    python reproduction/studies/missing_table.py table

`run` appends one line per clustering to results/missing.jsonl and skips those that are there. The metadata of
clients that lack classes are those of the whole clients without these classes (tests/test_experiments.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from flameche.em.spherical import Centroids, e_step, m_step, statistics
from flameche.experiments.build import build_method
from flameche.experiments.config import load_experiment
from flameche.experiments.provenance import provenance
from flameche.protocol.client import Cohort
from flameche.simulation.engine import simulate
from flameche.training.device import choose_device
from flameche_reproduction.metadata_cache import cached_metadata, clustering_world, without_labels
from flameche_reproduction.results_index import ResultsFile, describe_provenance

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SETS = ["mnist", "fashion-mnist", "cifar10", "pathmnist", "mednist28"]
SETTINGS = ["csl", "fds", "csf"]
MISSING = (1, 3, 5)
WAYS = {
    "default": ["method.mode=sketch"],
    "paper, masked sums": ["method.mode=paper"],
    "paper, imputed": ["method.mode=paper", "method.missing=impute"],
    "paper, zeros": ["method.mode=paper", "method.missing=zero"],
}
EARLIER = "robust"  # the default until `sketch` took its place; its lines are stored
SEEDS = 10


def run(datasets: list[str], device: str, out: Path, cache: Path | None) -> None:
    """Cluster everything that is not in `out` yet."""
    done = {(r["dataset"], r["setting"], r["seed"], r["missing"], r["way"]) for r in read(out)}
    for name, seed, setting, missing in itertools.product(datasets, range(SEEDS), SETTINGS, MISSING):
        for way, changes in WAYS.items():
            if (name, setting, seed, missing, way) in done:
                continue
            whole = load_experiment(
                ROOT / "experiments" / f"{name}.toml", [f"data.heterogeneity={setting}", *changes]
            )
            metadata, group = cached_metadata(whole, seed, device, cache)
            world = clustering_world(whole, seed, without_labels(metadata, seed, missing), group)
            method = build_method(whole, world)
            result = simulate(method, world, whole.participants)
            line = {"dataset": name, "setting": setting, "seed": seed, "missing": missing, "way": way}
            line |= {"ari": round(result.ari_final, 4)}
            if way == "default":
                line["bound"] = round(bound(method.cohort, group, own=True), 4)
                line["without_own"] = round(bound(method.cohort, group, own=False), 4)
            ResultsFile(out).add({**line, **provenance(device)})
            print(json.dumps(line), flush=True)


def bound(cohort: Cohort, group: np.ndarray, *, own: bool) -> float:
    """Score an E-step with the centroids of the true groups; own: a client's own group has its part in it.

    Its own part draws a client towards its group even where nothing else in its metadata does.
    """
    terms = statistics(cohort.phi, cohort.weight)
    sums = np.stack([terms[group == g].sum(axis=0) for g in range(group.max() + 1)])
    shape = (len(sums), *cohort.blocks)
    blank = Centroids(np.zeros(shape), np.zeros(shape[:2]))
    found = np.empty(len(terms), np.int64)
    for i in range(len(terms)):
        left = sums.copy()
        left[group[i]] -= 0.0 if own else terms[i]
        found[i] = e_step(cohort.phi[i : i + 1], cohort.weight[i : i + 1], m_step(left, blank))[0][0]
    return float(adjusted_rand_score(group, found))


def read(file: Path) -> list[dict]:
    """Read the lines that are there."""
    return ResultsFile(file).read()


HEAD = """\
# Missing labels

Made by `python reproduction/studies/missing_table.py run` and `... table` from `missing.jsonl`: each
client lacks one, three or five classes, drawn at random. 100 clients, 4 groups, 100 rounds, participation
20%, seeds 0 to 9. ARI after the last E-step: mean, in brackets the runs at 1.00. *Nearest true centroid*
assigns every client to the nearest of the four true groups' centroids; a client's own metadata have a
part in one of these, which draws it there even if it lacks every class in which its group differs.
*Without its own part* they are left out for it: that is what can be known of a client. FLAMECHE leaves
them out, too, so that it can only be expected to reach this second bound; *robust*, the default mode
until `sketch` took its place, may pass it, since its clusters share the classes in which they do not
differ.
"""


def table(records: list[dict]) -> str:
    """Write the page."""
    lines = [HEAD]
    for missing in MISSING:
        lines += ["", f"## {missing} missing", ""]
        lines += [
            "| data | setting | nearest true centroid | without its own part | "
            + " | ".join((EARLIER, *WAYS))
            + " |"
        ]
        lines += ["|---" * (5 + len(WAYS)) + "|"]
        for name, setting in itertools.product(SETS, SETTINGS):
            some = [
                r for r in records if (r["dataset"], r["setting"], r["missing"]) == (name, setting, missing)
            ]
            if not some:
                continue
            ways = [[r for r in some if r["way"] == way] for way in (EARLIER, *WAYS)]
            bounded = ways[0] or ways[1]
            cells = [cell([r[key] for r in bounded]) for key in ("bound", "without_own")]
            cells += [cell([r["ari"] for r in mine]) for mine in ways]
            lines.append(f"| {name} | {setting} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", describe_provenance(records)]) + "\n"


def cell(values: list[float]) -> str:
    """Write a mean, and how many are perfect."""
    return f"{np.mean(values):.3f} ({sum(v == 1 for v in values)})" if values else "–"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--datasets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS / "missing.jsonl")
    options = parser.parse_args()
    if options.what == "run":
        run(options.datasets, choose_device(options.device), options.out, options.cache)
    else:
        (RESULTS / "missing.md").write_text(table(read(options.out)))
        print(RESULTS / "missing.md")
