"""Attacks on what is opened: solving sums, second moments, cluster means, membership of an image.

python -m reproduction.studies.attacks_table play [sums moments means membership] [--seeds 5]
python -m reproduction.studies.attacks_table table                                   # results/attacks.md

Appends a line for each run to results/attacks.jsonl; what is there already is not played again. The attacks
themselves are in tests/attacks.py, and small ones of each kind are played by the tests.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from flameche.em import leaves as splitting
from flameche.em import sketch as sketching
from flameche.em.sketch import RIDGE
from flameche.em.spherical import statistics
from flameche.experiments.build import build
from flameche.experiments.config import parse_experiment
from flameche.experiments.extraction import Extraction
from flameche.experiments.leakage import audited
from flameche.experiments.provenance import provenance
from flameche.metadata.extractors import ClientSamples
from flameche.simulation.engine import simulate
from flameche_reproduction.results_index import ResultsFile
from tests.attacks import Rotation, Shadow, Values, auc, in_span, nearest

LINES, TABLE = ResultsFile(Path("results/attacks.jsonl")), Path("results/attacks.md")
WITHIN = 1e-3  # by which a solved number may miss: a sum's rounding, a few times
LIVES: dict[str, tuple[list[int], int]] = {"8": ([4, 4], 1), "20": ([8, 7, 5], 5), "100": ([40, 40, 20], 20)}
CONTROLS = ("three, no guard", "8, no guard", "20, paper")


def life(case: str, scheme: str) -> Any:
    """Describe a federation that chooses K, of whom some join late, one drifts and one leaves."""
    sizes, late = LIVES[case]
    clients = sum(sizes)
    last = list(range(clients - late, clients))  # of the last group: whole where it has 5 or more
    events = [
        {"round": 4, "kind": "join", "clients": last},
        {"round": 8, "kind": "drift", "clients": [0], "to": 1},
        {"round": 8, "kind": "drift", "clients": [clients - 1], "to": 0},
        {"round": 10, "kind": "leave", "clients": [1]},
    ]
    data = {"dataset": "digits", "clients": clients, "groups": sizes, "heterogeneity": "csf"}
    return parse_experiment(
        {
            "name": "attacks", "rounds": 14, "participation": 1.0 if clients == 8 else 0.5,
            "data": {**data, "per_label": 1 if clients > 20 else 5, "label_skew": False},
            "method": {"clusters": "auto"}, "scheme": {"kind": scheme}, "events": events,
        }
    )  # fmt: skip


def control(case: str, scheme: str) -> Any:
    """Describe a federation in which the attack must succeed."""
    paper = case.endswith("paper")
    clients = {"three": 3, "8": 8, "20": 20}[case.partition(",")[0]]
    options = {"mode": "paper", "m_step": "participants"} if paper else {}
    return parse_experiment(
        {
            "name": "attacks", "rounds": 60 if paper else 3, "participation": 0.5 if paper else 1.0,
            "data": {"dataset": "digits", "clients": clients, "groups": 2, "per_label": 5},
            "method": {"clusters": 2, **options},
            "scheme": {"kind": scheme, "min_cluster": 1},
        }
    )  # fmt: skip


def sums(case: str, scheme: str, seed: int) -> dict[str, Any]:
    """Play a federation's life, and solve what was opened for single clients."""
    own = life(case, scheme) if case in LIVES else control(case, scheme)
    setup = build(own, seed, device="cpu", training=False)
    log, method = Values(), setup.method
    if case.endswith("paper"):
        phi, counts = setup.world.metadata.phi, setup.world.metadata.presence
        log.listen_to_means(method.sums, statistics(phi, counts))
    else:
        log.listen(method)
    result = simulate(method, setup.world, own.participants, timeline=setup.timeline)
    members = [len(who) for _, who, _ in log.sums]
    everybody = sorted({i for _, who, _ in log.sums for i, _ in who})
    return {
        "clients": setup.world.clients,
        "k": method.clusters,
        "ari": round(result.ari, 4),
        "sessions": log.sessions,
        "sums": len(log.sums),
        "smallest": min(members, default=0),
        "solved": len(log.right(log.solve(), WITHIN)),
        "by_a_key_holder": log.pairs(WITHIN, everybody),
        "audit": {party: found.solved for party, found in audited(own, setup.world.ledger.openings,
                                                                  setup.world.clients).items()},
    }  # fmt: skip


GROUPS, ENOUGH, MOST_SHADOW = 4, 1000, 4000  # images beside a federation's, of each group; to learn from


def membership(case: str, how: str, seed: int) -> dict[str, Any]:
    """Tell members' images from others by all that a session opens; case "mnist 100", how: samples a class.

    Some clients of each group never take part: half of their images are those that are no members, from
    the other half and from test images the attacker learns what images look like.
    """
    name, _, many = case.partition(" ")
    clients, each = int(many), int(how)
    groups = 2 if clients < 12 or name == "digits" else GROUPS
    images = {"mnist": 5400, "digits": 130}[name]  # of a class
    apart = min(2 * -(-ENOUGH // (10 * each)), (images // each - clients) // groups) // 2 * 2
    size = clients // groups
    own = parse_experiment(
        {
            "name": "attacks", "rounds": 1, "participation": 1.0,
            "data": {"dataset": name, "clients": clients + groups * apart, "groups": groups,
                     "per_label": each},
            "method": {"clusters": groups}, "scheme": {"kind": "plain", "min_cluster": 3},
        }
    )  # fmt: skip
    setup = build(own, seed, device="cpu", training=False)
    federation, log = setup.federation, Values()
    place = np.arange(federation.clients) % (size + apart)
    outside = np.flatnonzero(place >= size)
    setup.method.leave(outside)
    log.listen(setup.method)
    setup.method.round(1, np.flatnonzero(place < size))
    extraction = Extraction(own, federation.shape, federation.classes, seed, "cpu")
    rng = np.random.default_rng(seed)
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    matrix = log.sketches[0].matrix
    moments = unfolded(next(value for what, _, value in log.sums if what.startswith("second")), matrix)
    means = [(members, value) for what, members, value in log.sums if what == "means"]
    inside = np.array(sorted({i for members, _ in means for i, _ in members}))
    phi = setup.method.cohort.phi
    for g in range(groups):
        some = federation.test.of(g)
        pick = rng.permutation(len(some[1]))[:MOST_SHADOW]
        here = [i for i in np.flatnonzero(federation.group == g).tolist() if place[i] < size]
        others = [i for i in outside.tolist() if federation.group[i] == g]
        test = features_of(extraction, some[0][pick], some[1][pick], federation.classes)
        images_of = {
            i: features_of(extraction, *federation.train.of(i), federation.classes) for i in here + others
        }
        for b in range(federation.classes):
            learnt = [test[b], *(images_of[i][b] for i in others[: apart // 2])]
            shadow = Shadow(np.concatenate(learnt))
            strangers = np.concatenate([images_of[i][b] for i in others[apart // 2 :]])
            known = [i for i in here if i in inside]
            members = np.concatenate([images_of[i][b] for i in known])
            everyone = np.concatenate([images_of[i][b] for i in here])
            mine = [(who, value) for who, value in means if {i for i, _ in who} & set(known)]
            who, value = max(mine, key=lambda one: len({i for i, _ in one[0]} & set(known)) / len(one[0]))
            block, rest = split_mean(value, b, phi.shape), [v for w, v in means if not {*w} & {*who}]
            reference = np.zeros(len(block))
            if rest:
                both = np.mean([split_mean(v, b, phi.shape) for v in rest], axis=0)
                reference = both - (both @ shadow.direction) * shadow.direction
            scatter, whole = scatter_of(moments, matrix, b, log.sketches[0].mean[b], len(inside))
            count = len(who) * each
            for where, images in (("in", members), ("any", everyone), ("out", strangers)):
                found[f"means/{where}"].append(shadow.in_mean(images, block, count, 0.0))
                found[f"means, differences/{where}"].append(shadow.in_mean(images, block, count, reference))
                found[f"second moments/{where}"].append(shadow.in_moments(images, matrix[b], scatter))
                found[f"span/{where}"].append(in_span(images, matrix[b], whole))
            for i in known[:5]:  # what a client's own metadata would tell
                found["own/in"].append(shadow.in_mean(images_of[i][b], phi[i, b], each, 0.0))
                found["own/out"].append(shadow.in_mean(strangers, phi[i, b], each, 0.0))
    every = {key: np.concatenate(parts) for key, parts in found.items()}
    words = sorted({key.partition("/")[0] for key in every})
    return {
        "session": len(inside),
        "smallest": min(len(who) for who, _ in means),
        "strangers": len(every["means/out"]),
        "in_session": {w: round(auc(every[f"{w}/in"], every[f"{w}/out"]), 4) for w in words},
        "of_any_client": {
            w: round(auc(every[f"{w}/any"], every[f"{w}/out"]), 4) for w in words if w != "own"
        },
    }


def features_of(extraction: Extraction, x: Any, y: Any, classes: int) -> list[np.ndarray]:
    """Give the features of images, class by class."""
    alone = extraction(ClientSamples(x, y, np.arange(len(y) + 1), classes))
    return [alone.phi[y == b, b] for b in range(classes)]


def split_mean(value: np.ndarray, b: int, shape: tuple[int, ...]) -> np.ndarray:
    """Read the mean of one block off a sum of metadata."""
    _, blocks, features = shape
    mean: np.ndarray = value[b * features : (b + 1) * features] / value[blocks * features + b]
    return mean


def unfolded(total: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Turn the upper triangle of second moments into [B r+1 B r+1]."""
    blocks, _, width = matrix.shape
    rows, columns = np.triu_indices(blocks * (width + 1))
    full = np.zeros((blocks * (width + 1),) * 2)
    full[rows, columns] = full[columns, rows] = total
    return full.reshape(blocks, width + 1, blocks, width + 1)


def scatter_of(
    moments: np.ndarray, matrix: np.ndarray, b: int, mean: np.ndarray, clients: int
) -> tuple[np.ndarray, np.ndarray]:
    """Give one block's second moments about the mean, and about zero, of all clients with equal weights."""
    own = moments[b, :-1, b, :-1] / (moments[b, -1, b, -1] / clients)
    return own - clients * np.outer(mean, mean), own


SURE, STARTS = 0.99, 150  # a cosine from which a client counts as recovered
TOGETHER = {6: 6, 8: 6, 12: 4, 20: 1}  # starts by clients: a start takes seconds


def second_moments(case: str, how: str, seed: int) -> dict[str, Any]:
    """Recover clients from the sum of second moments and from all else that a session opens.

    case: clients; how: "shipped", or "no projection" as a control that must succeed.
    """
    clients, full = int(case), how == "no projection"
    own = parse_experiment(
        {
            "name": "attacks", "rounds": 1, "participation": 1.0,
            "data": {"dataset": "digits", "clients": clients, "groups": 2, "per_label": 5},
            "method": {"clusters": 2}, "scheme": {"kind": "plain", "min_cluster": 3},
        }
    )  # fmt: skip
    setup, log = build(own, seed, device="cpu", training=False), Values()
    log.listen(setup.method)
    cuts = []  # how leaves are looked at follows from opened sums
    with patched(
        sketching, "width_for", (lambda blocks, features: features) if full else sketching.width_for
    ):
        terms = splitting.histogram_terms

        def seen(cut: Any, y: Any, leaf: Any) -> Any:
            cuts.append((cut, leaf))
            return terms(cut, y, leaf)

        with patched(splitting, "histogram_terms", seen):
            setup.method.round(1, np.arange(clients))
    sketch, cohort = log.sketches[0], setup.method.cohort
    matrix, weight = sketch.matrix, cohort.weight[0, 0]
    moments = unfolded(log.sums[0][2], matrix) / weight
    attack = Rotation(moments, matrix, clients, full)
    blocks = np.einsum("cbf,bfr->cbr", cohort.phi, matrix).reshape(clients, -1)
    truth = blocks - blocks.mean(axis=0)
    sums, leaves = known_sums(log, sketch, weight, cuts)
    rng = np.random.default_rng(seed)
    starts = TOGETHER[clients]
    guessed = np.concatenate([attack.vectors(q) for q in attack.guesses(rng, 2)])
    alone = attack.alone(rng, STARTS)
    lengths, missed = attack.together(rng, starts)
    with_sums, missed_by_sums = attack.together(rng, starts, sums)
    found = {
        "guess": guessed,
        "lengths": alone,
        "lengths, all at once": lengths,
        "sums": attack.together(rng, 1, sums, lengths=False)[0],
        "sums, lengths": with_sums,
        "sums, lengths, histograms": attack.together(rng, starts, sums, leaves)[0],
    }
    best = {name: nearest(vectors, truth) for name, vectors in found.items()}
    return {
        "width": matrix.shape[2],
        "of": matrix.shape[1],
        "missed": {"truth": attack.missed(blocks), "lengths": missed, "sums, lengths": missed_by_sums},
        "recovered": {name: round(float((near > SURE).mean()), 4) for name, near in best.items()},
        "cosine": {name: round(float(near.mean()), 4) for name, near in best.items()},
    }


def known_sums(
    log: Values, sketch: Any, weight: float, cuts: list[tuple[Any, Any]]
) -> tuple[list[Any], list[Any]]:
    """Write what else a session opened as sums and histograms of projected blocks."""
    blocks, features, width = sketch.matrix.shape
    every = np.eye(blocks * width)
    axes = sketch.axes.reshape(blocks * width, -1).T  # a sketch, where all classes are there
    gram = axes @ axes.T
    to_sketch = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), axes) * (1 + RIDGE)
    shift = to_sketch @ sketch.mean.ravel()
    sums, leaves = [], []
    for what, who, value in log.sums:
        members = np.array([i for i, _ in who])
        if what == "means":
            phi = value[: blocks * features].reshape(blocks, features) / weight
            sums.append((members, every, np.einsum("bf,bfr->br", phi, sketch.matrix).ravel()))
        elif what.startswith("sketches") and len(value) == len(axes):
            sums.append((members, to_sketch, value + len(members) * shift))
    opened = [(what, who, value) for what, who, value in log.sums if what.startswith("histograms")]
    levels = [list(some) for _, some in groupby(opened, key=lambda one: one[0])]
    for (cut, leaf), level in zip(cuts, levels, strict=False):
        for r in np.unique(leaf).tolist():
            if not level or len(level[0][1]) != (leaf == r).sum():
                continue  # the guard refused it
            _, who, value = level.pop(0)
            along, at = cut.axes[r] @ to_sketch, cut.axes[r] @ (cut.centre[r] + shift)
            counts = np.rint(value.reshape(len(cut.axes[r]), -1)[:, : cut.bins[r]]).astype(int)
            inner = np.linspace(-splitting.RANGE, splitting.RANGE, cut.bins[r] + 1)
            inner[[0, -1]] = -10.0, 10.0
            edges = inner * np.maximum(cut.width[r], 1e-12)[:, None] + at[:, None]
            leaves.append((np.array([i for i, _ in who]), along, edges, counts))
    return sums, leaves


@contextmanager
def patched(module: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in place of a module's function for a while."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def cluster_means(case: str, how: str, seed: int) -> dict[str, Any]:
    """Compare each opened mean with its nearest client, and with the nearest of as many that are not in it.

    Cosines of metadata without the federation's mean. Half of each group hold a session.
    """
    name, _, many = case.partition(" ")
    size = int(many) // 2
    own = parse_experiment(
        {
            "name": "attacks", "rounds": 1, "participation": 1.0,
            "data": {"dataset": name, "clients": 4 * size, "groups": 2, "per_label": int(how)},
            "method": {"clusters": 2}, "scheme": {"kind": "plain", "min_cluster": 3},
        }
    )  # fmt: skip
    setup, log = build(own, seed, device="cpu", training=False), Values()
    place = np.arange(4 * size) % (2 * size)
    setup.method.leave(np.flatnonzero(place >= size))
    log.listen(setup.method)
    setup.method.round(1, np.flatnonzero(place < size))
    phi, group = setup.method.cohort.phi, setup.federation.group
    centred = (phi - phi[place < size].mean(axis=0)).reshape(len(phi), -1)
    inside, outside = [], []
    for _, who, value in (one for one in log.sums if one[0] == "means"):
        members = np.array([i for i, _ in who])
        blocks = np.stack([split_mean(value, b, phi.shape) for b in range(phi.shape[1])])
        mean = blocks.ravel() - phi[place < size].mean(axis=0).ravel()
        others = np.flatnonzero((group == np.bincount(group[members]).argmax()) & (place >= size))
        inside.append(nearest(mean[None], centred[members]).max())
        outside.append(nearest(mean[None], centred[others[: len(members)]]).max())
    return {
        "smallest": min(len(who) for what, who, _ in log.sums if what == "means"),
        "nearest": round(float(np.mean(inside)), 4),
        "guess": round(float(np.mean(outside)), 4),
    }


PARTS: dict[str, tuple[Callable[[str, str, int], dict[str, Any]], list[tuple[str, str]]]] = {
    "sums": (sums, [(case, scheme) for case in (*LIVES, *CONTROLS) for scheme in ("bfv", "secagg")]),
    "moments": (
        second_moments,
        [(str(n), how) for n in (6, 8, 12, 20) for how in ("shipped", "no projection")],
    ),
    "means": (
        cluster_means,
        [("digits 6", "5"), ("digits 8", "5"), ("digits 12", "5")]
        + [(f"mnist {n}", "5") for n in (6, 8, 12, 20)]
        + [(f"mnist {n}", "50") for n in (6, 8, 12, 20)],
    ),
    "membership": (
        membership,
        [(f"mnist {n}", each) for n in (8, 20, 100) for each in ("50", "5", "1")]
        + [(f"digits {n}", each) for n in (8, 20) for each in ("5", "1")],
    ),
}


def play(parts: Sequence[str], seeds: Sequence[int]) -> None:
    """Play what is not stored yet."""
    known = {(line["part"], line["case"], line["how"], line["seed"]) for line in LINES.read()}
    for part in parts:
        attack, cases = PARTS[part]
        for case, how in cases:
            for seed in seeds:
                if (part, case, how, seed) not in known:
                    found = attack(case, how, seed)
                    LINES.add(
                        {"part": part, "case": case, "how": how, "seed": seed, **found, **provenance("cpu")}
                    )
                    print(part, case, how, seed, found, flush=True)


INTRODUCTION = """\
# Attacks on what is opened

Means over seeds. Made by `python -m reproduction.studies.attacks_table play`, then `table`; the attacks
are in `tests/attacks.py`.
"""
SUMS = """\
## Solving sums

A log of the values that were opened and of who was in each sum, written down apart from guard and audit,
over a federation's whole life: K is chosen, some clients join late (of 20 and 100 the whole last group), two
drift, one leaves. Linear algebra on that log; sums of metadata are used as sums of sketches, too. A client
is solved if its term comes out right to 0.001. A key holder takes its own terms out, in the worst case over
clients. Digits; `scheme.min_cluster = 3`, unless it says no guard. Each cell: the most over the seeds, and
the smallest set.
"""
MOMENTS = """\
## Second moments

Digits, two groups, 5 images a class. Share of clients recovered with a cosine above 0.99, and in brackets the
mean cosine of a client with the nearest of the solutions; both of projected blocks without their mean.
`guess`: twice as many as clients, from rotations at random that agree with the second moments. `lengths`: a
block has about the mean length; single clients from 150 starts, 2n solutions, and all clients at once.
`sums`: cluster and leaf sums over named clients are known as well (without lengths: what any solution has
that agrees with them). `histograms`: too. "shipped" projects 32 numbers of a class to 16; "no projection" is
the control that must succeed, and does up to 12 clients. With 20 this attack finds wrong minima even there;
that it would need more than time with the projection shows in the last column: in how many runs both
solutions by lengths fit what the attacker knows better than the true clients do.
"""
MEANS = """\
## Means over few clients

Cosine of an opened mean over a cluster (metadata in full dimension, without the federation's mean) with the
nearest of its clients; and, as guessing, with the nearest of as many clients of its group that are not in it.
"""
MEMBERSHIP = """\
## Is an image among a client's?

AUC; 0.5 is guessing. Images of clients that hold a session, or of any client of the federation, against
images of the same group that nobody has; the attacker knows the group and has some thousand images to learn
from. `means`: likelihood ratio from the mean over the client's cluster; `differences`: against the mean over
other clusters. `second moments`, `span`: from the sum of second moments. `own`: from a client's own
metadata, the control.
"""


def table() -> str:
    """Write the tables of what is stored."""
    by: dict[str, dict[tuple[str, str], list[dict[str, Any]]]] = {part: defaultdict(list) for part in PARTS}
    for line in LINES.read():
        by[line["part"]][line["case"], line["how"]].append(line)
    text = [INTRODUCTION, SUMS]
    head = ["clients", "scheme", "seeds", "sessions", "sums", "smallest", "solved by sums", "by a key holder"]
    text += heading([*head, "by the audit"])
    for (case, how), lines in by["sums"].items():
        most = [max(line[key] for line in lines) for key in ("sessions", "sums")]
        least = min(line["smallest"] for line in lines)
        solved = [max(line[key] for line in lines) for key in ("solved", "by_a_key_holder")]
        audited_ = max(max(line["audit"].values()) for line in lines)
        text.append(row([case, how, len(lines), *most, least, *solved, audited_]))
    text.append("\n" + MOMENTS)
    for (case, how), lines in by["moments"].items():
        words = list(lines[0]["recovered"])
        if (case, how) == next(iter(by["moments"])):
            text += heading(["clients", "", "seeds", *words, "better than the truth"])
        cells = [
            f"{100 * mean(lines, 'recovered', word):.0f}% ({mean(lines, 'cosine', word):.2f})"
            for word in words
        ]
        worst = [max(line["missed"]["lengths"], line["missed"]["sums, lengths"]) for line in lines]
        better = sum(line["missed"]["truth"] - w > 1e-9 for line, w in zip(lines, worst, strict=True))
        text.append(row([case, how, len(lines), *cells, f"{better} of {len(lines)}"]))
    text += ["\n" + MEANS, *heading(["clients", "images a class", "seeds", "nearest", "guess"])]
    for (case, how), lines in by["means"].items():
        text.append(
            row([case, how, len(lines), *(f"{mean(lines, key):.2f}" for key in ("nearest", "guess"))])
        )
    words = ["means", "means, differences", "second moments", "span"]
    text += ["\n" + MEMBERSHIP, *heading(["clients", "images a class", "seeds", "whose", *words, "own"])]
    for (case, how), lines in by["membership"].items():
        for who, key in (("in the session", "in_session"), ("any client's", "of_any_client")):
            if who != "in the session" and lines[0]["session"] == int(case.split()[1]):
                continue
            aucs = [f"{mean(lines, key, word):.2f}" for word in words]
            own = f"{mean(lines, 'in_session', 'own'):.2f}"
            text.append(row([case, how, len(lines), who, *aucs, own]))
    return "\n".join(text) + "\n"


def heading(cells: Sequence[str]) -> list[str]:
    """Begin a table."""
    return [row(cells), "|" + " --- |" * len(cells)]


def row(cells: Sequence[Any]) -> str:
    """Write a table's row."""
    return "| " + " | ".join(map(str, cells)) + " |"


def mean(lines: Sequence[dict[str, Any]], *keys: str) -> float:
    """Average a number of several lines."""
    values = []
    for line in lines:
        value: Any = line
        for key in keys:
            value = value[key]
        values.append(value)
    return float(np.mean(values))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["play", "table"])
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if given.what == "play":
        play(given.parts, range(given.seeds))
    else:
        TABLE.write_text(table())
        print(TABLE)
