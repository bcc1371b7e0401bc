"""Makes results/living.md: late joiners, drifting and leaving clients, in both modes of FLAMECHE.

    python reproduction/studies/living.py run [--datasets digits mnist] [--seeds 5] [--device cuda]
    python reproduction/studies/living.py table

`run` appends one line per clustering to results/living.jsonl and skips those that are there. Nothing is
trained: what is measured is how the clusters follow. In round 35 of 60, 30% of the clients join, or 10% get
the data of another group, or 20% leave, all drawn from the seed; or a whole group, of which nobody was there
before, joins.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from clustering_table import RESULTS, ROOT, read, spread

from flameche.errors import DataError
from flameche.experiments.build import build
from flameche.experiments.config import Experiment, config_hash, load_experiment
from flameche.experiments.provenance import provenance
from flameche.simulation.engine import Result, simulate
from flameche.training.device import choose_device
from flameche_reproduction.results_index import ResultsFile, describe_provenance

ROUNDS, AT = 60, 35
SETS = {"digits": ["csf"], "mnist": ["csl", "fds", "csf"]}
SCENARIOS = ["still", "join 30%", "drift 10%", "leave 20%", "new group"]
MODES = {
    "default": ["method.mode=sketch"],
    "paper": ["method.mode=paper"],
    "default, guarded": ["method.mode=sketch", "scheme.min_cluster=3"],
}
EARLIER = ("robust", "robust, guarded")  # the default before `sketch`; its lines are stored
SAME = ["scheme.kind=plain", f"rounds={ROUNDS}"]
OWN = {"digits": ["participation=0.3"], "mnist": ["participation=0.2"]}


def events(scenario: str, clients: int, groups: int) -> list[dict[str, Any]]:
    """Write a scenario as the config's events."""
    kind, _, share = scenario.partition(" ")
    if scenario == "still":
        return []
    if scenario == "new group":  # groups are contiguous; the last one's clients come together
        last = range(clients - clients // groups, clients)
        return [{"round": AT, "kind": "join", "clients": list(last)}]
    count = round(clients * int(share.rstrip("%")) / 100)
    if kind != "drift":
        return [{"round": AT, "kind": kind, "clients": count}]
    each = [count // groups + (g < count % groups) for g in range(groups)]
    return [{"round": AT, "kind": kind, "clients": n, "to": g} for g, n in enumerate(each) if n]


def described(name: str, setting: str, scenario: str, mode: str) -> Experiment:
    """Describe one clustering."""
    words = [*SAME, *OWN[name], f"data.heterogeneity={setting}", "scheme.min_cluster=1", *MODES[mode]]
    bare = load_experiment(ROOT / "experiments" / f"{name}.toml", words)
    told = json.dumps(events(scenario, bare.data.clients, bare.data.group_count))
    inline = told.replace('":', '" =')  # JSON's objects as TOML's inline tables
    return load_experiment(ROOT / "experiments" / f"{name}.toml", [*words, f"events={inline}"])


def run(datasets: list[str], seeds: int, device: str, out: Path) -> int:
    """Cluster everything that is not in `out` yet; return how many sets could not be loaded."""
    done, missing = {(r["config_hash"], r["seed"]) for r in read(out)}, set()
    for name, seed in itertools.product(datasets, range(seeds)):
        for setting in SETS[name]:
            metadata = None
            for scenario, mode in itertools.product(SCENARIOS, MODES):
                if name == "digits" and "guarded" in mode:
                    continue  # five clients a group: nearly every sum would be held back
                experiment = described(name, setting, scenario, mode)
                if (config_hash(experiment), seed) in done or name in missing:
                    continue
                try:
                    setup = build(experiment, seed, device=device, training=False, metadata=metadata)
                except DataError as problem:
                    print(problem)
                    missing.add(name)
                    continue
                metadata = setup.world.metadata
                start = time.perf_counter()
                result = simulate(setup.method, setup.world, experiment.participants, timeline=setup.timeline)
                line = {
                    "dataset": name, "setting": setting, "scenario": scenario, "mode": mode, "seed": seed,
                    **measured(result, setup), "seconds": round(time.perf_counter() - start, 2),
                    "config_hash": config_hash(experiment), **provenance(device),
                }  # fmt: skip
                ResultsFile(out).add(line)
                print(line, flush=True)
    return len(missing)


def measured(result: Result, setup: Any) -> dict[str, Any]:
    """Measure how the clusters followed: ARI around the event, and the rounds until all was right again."""
    ari = np.array([record["ari"] for record in result.rounds])
    affected = {int(i) for event in setup.timeline.events for i in event.clients if event.kind != "leave"}
    heard: int | None = None if affected else 0
    for late, record in enumerate(result.rounds[AT - 1 :]):
        affected -= set(record["participants"])
        heard = late if heard is None and not affected else heard
    before, after = float(ari[AT - 2]), ari[AT - 1 :]
    right = np.flatnonzero(after >= before)
    return {
        "before": before,
        "after": float(after[0]),
        "end": float(ari[-1]),
        "final": result.ari_final,
        "again": int(right[0]) if len(right) else None,
        "heard": heard,
    }


HEAD = f"""\
# Living federations

Made by `python reproduction/studies/living.py run` and `... table` from `living.jsonl`: {ROUNDS} rounds,
nothing trained, participation 30% (digits, 20 clients) or 20% (MNIST, 100 clients). In round {AT},
between two reclusterings of paper mode, 30% of the clients *join*, 10% *drift* to other groups, 20%
*leave*, or all clients of a *new group* join, of which nobody was there before; *still*: nothing happens.
ARI is over the clients there that have a cluster, against the groups as they are then: in the round
before the event, in its round, in the last round; *final*: after one E-step of everybody there. *right
again*: rounds from the event until ARI is what it was before, median (and largest); *all heard*: until
everybody who joined or drifted has taken part once, before which its stored cluster cannot be right.
*guarded*: sums that would show fewer than three clients, or the changes of fewer than three, are held
back. Mean ± sd (ddof = 1) over the seeds.

In the default mode a late group is found by a second clustering session, as soon as enough of its clients
have said that they are far from every cluster; clients that were in no session are taken for it first.

*robust* was the default mode until `sketch` took its place. In it clients that join or drift are right from
the first round in which they take part, guarded or not. A new group is another matter: K is fixed, so
before it comes some group is split over two clusters (ARI below 1; guarded, the fourth stays empty), which
then have to give way. Among 100 clients it needs a split-merge move for that, and makes it; digits' 20 begin
each alone again when some join or drift. Paper mode needs a reclustering that happens to hit the new group.

| data | mode | event | seeds | before | then | end | at 1.00 | final | right again | all heard |
|---|---|---|---|---|---|---|---|---|---|---|"""


def table(source: Path) -> str:
    """Write the page."""
    records, lines = read(source), [HEAD]
    for name, mode in itertools.product(SETS, (*MODES, *EARLIER)):
        for setting, scenario in itertools.product(SETS[name], SCENARIOS):
            rows = [
                r
                for r in records
                if (r["dataset"], r["setting"], r["mode"], r["scenario"]) == (name, setting, mode, scenario)
            ]
            if not rows:
                continue
            cells = [
                f"{name} {setting}", mode, scenario, str(len(rows)),
                *(spread([r[key] for r in rows]) for key in ("before", "after", "end")),
                str(sum(r["end"] == 1 for r in rows)), spread([r["final"] for r in rows]),
                middle([r["again"] for r in rows]), middle([r["heard"] for r in rows]),
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", describe_provenance(records), ""])


def middle(rounds: list[int | None]) -> str:
    """Write median and largest; how many never came to it."""
    known = [r for r in rounds if r is not None]
    text = f"{np.median(known):g} ({max(known)})" if known else "–"
    return text + (f", {len(rounds) - len(known)} never" if len(known) < len(rounds) else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--datasets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "living.jsonl")
    options = parser.parse_args()
    if options.what == "run":
        sys.exit(run(options.datasets, options.seeds, choose_device(options.device), options.out))
    (RESULTS / "living.md").write_text(table(options.out))
    print(RESULTS / "living.md")
