"""Writes results/one-group.md from the lines that experiments/one_group.py stored."""

from __future__ import annotations

from pathlib import Path

from one_group import BATCH, DRAWS, EPOCHS, LAST, PICKED, ROUNDS
from one_group_ways import CLIENTS, PARTS, Way, ways

from flameche.experiments.stored import Lines

STORED = Path("results/one-group.jsonl")
INTRODUCTION = f"""# One group alone

What ways to train make of a quarter of Oracle: one group of {CLIENTS} clients, {PICKED} of them a round,
{ROUNDS} rounds of {EPOCHS} epochs with batches of {BATCH}; 50 samples of each label at each client. Accuracy
over the last {LAST} rounds, ± over those rounds; one H200, bfloat16 (`experiments/one_group.py`). Tests are
1,500 or 2,500 images of the set's, drawn once each together with the clients' samples: rows with other tests
have other clients too, and an accuracy is uncertain by about one point. What they are worth:
[docs/reproducing.md](../docs/reproducing.md)."""
FIRSTS = f"""## Groups in first updates

ARI of what is found in the updates of 36 clients, each trained once from the initial model. *Linked*: what a
searched threshold of cosines links, as StoCFL has it; *described*: k-means over cosines with the {PARTS}
leading directions, as FedGroup has it; *placed*: k-means over the weights, as FeSEM begins. *Of 20*: groups
are sought among 20 clients, those of a first round; the others join the mean update that is most similar, or
nearest ({DRAWS} draws; newcomers count as 80 of 100). Cosines: mean within and between the true groups.
`pairs`: csl with MNIST's pairs. With the small stem images of CIFAR-10 are flipped, turned and shifted."""
MOVES = {"": "images as they are", "fs": "flips, shifts", "fts": "flips, turns, shifts"}


def words(way: Way) -> str:
    """Say how a way trains."""
    said = [
        "stem for small images" if way.small else "usual stem",
        MOVES[way.moves] + (f", cut to {way.crop} pixels in training" if way.crop else ""),
        f"{100 * way.holdout:g}% held out",
        "first client's statistics" if way.statistics == "first" else "",
        "images misread" if way.misread else "",
        f"SGD ({way.sgd[0]:g}, momentum {way.sgd[1]:g})" if way.sgd else "",
        f"seed {way.seed}" if way.seed else "",
    ]
    return "; ".join(part for part in said if part)


def main() -> None:
    """Write the tables of what is stored."""
    lines = {line["name"]: line for line in Lines(STORED).read()}
    there = [(way, lines[name]) for name, way in ways().items() if name in lines]
    parts = [INTRODUCTION]
    for dataset, title in (("cifar10", "CIFAR-10"), ("pathmnist", "PathMNIST")):
        rows = [
            f"| {words(way)} | {way.view}{', label skew' if way.skew else ''} "
            f"| {100 * line['accuracy']:.1f} ± {100 * line['sd']:.1f} | {line['tests']:,} |"
            for way, line in there
            if way.dataset == dataset and not way.setting
        ]
        parts += [
            f"## {title}",
            "\n".join(["| training | group | accuracy % | tests |", "|---|---|---:|---:|", *rows]),
        ]
    rows = [
        f"| {way.dataset} | {way.setting} | {'small' if way.small else 'usual'} "
        f"| {'SGD' if way.sgd else 'Adam'} | "
        + f"{line['linked']:.2f} | "
        + " | ".join(
            f"{line[how]:.2f} | {line[f'{how}_late'][0]:.2f} ± {line[f'{how}_late'][1]:.2f}"
            for how in ("described", "placed")
        )
        + f" | {line['cosine_within']:.2f}, {line['cosine_between']:.2f} |"
        for way, line in there
        if way.setting
    ]
    head = (
        "| set | setting | stem | first updates by | linked | described | of 20 | placed | of 20 | cosines |"
    )
    parts += [FIRSTS, "\n".join([head, "|---|---|---|---|---:|---:|---:|---:|---:|---:|", *rows])]
    STORED.with_suffix(".md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
