"""What ways to train make of one group alone, and of all clients' first updates; many at once on a GPU.

One group of 25 clients, five a round, averaged, is a quarter of Oracle: enough to tell ways to train apart.
What server-side methods cluster by are the clients' first updates: groups are sought in those of 36 clients.

    python reproduction/studies/one_group.py [--only NAME ...] [--processes 12]      # results/one-group.jsonl
    python reproduction/studies/one_group_table.py                                   # results/one-group.md

What is there is not run again. `--data DIR` has npz files in MedMNIST's layout in place of whole sets. The
loop is its own, for it crops and misreads images as the package never does; without that it agrees with the
package's Oracle (`cifar10` and `pathmnist` beside results/paper/csl.md).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from one_group_ways import PARTS, Way, ways
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from torch.nn import functional as F

from flameche.data import Federation, build_federation, load_dataset, load_npz
from flameche.data.federation import Samples
from flameche.data.heterogeneity import SWAPS, default_transforms
from flameche.experiments.provenance import provenance
from flameche.methods.stocfl import threshold_for
from flameche.models.features import to_input
from flameche.models.resnet import ResNet18
from flameche_reproduction.results_index import ResultsFile

PICKED, ROUNDS, EPOCHS, BATCH, LR = 5, 100, 10, 256, 1e-3
TURN = 20  # degrees, of the authors' earlier code
PAD = 4
LAST = 10  # rounds over which an accuracy is averaged
SCORED = 500
DRAWS, EARLY = 40, 20  # of those among whom groups are sought first
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Trained:
    """A network whose steps are captured as CUDA graphs, one for each shape of a batch."""

    def __init__(self, way: Way, shape: tuple[int, int, int], classes: int, device: str) -> None:
        self.device, self.graphs = device, dict[tuple[int, ...], tuple[Any, Tensor, Tensor]]()
        torch.manual_seed(way.seed)
        model = ResNet18(shape, classes, stem=way.stem)
        self.model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.params = list(self.model.parameters())
        self.stats = [b for b in self.model.buffers() if b.is_floating_point()]
        if way.sgd:
            self.optimiser: Any = torch.optim.SGD(self.params, lr=way.sgd[0], momentum=way.sgd[1])
        else:
            self.optimiser = torch.optim.Adam(self.params, lr=LR, capturable=device == "cuda")

    def read(self) -> list[Tensor]:
        """Copy parameters, then statistics."""
        return [each.detach().clone() for each in (*self.params, *self.stats)]

    @torch.no_grad()
    def write(self, state: list[Tensor]) -> None:
        """Take back what `read` gave, and forget the optimiser's moments."""
        for own, new in zip((*self.params, *self.stats), state, strict=True):
            own.copy_(new)
        for moments in self.optimiser.state.values():
            for each in moments.values():
                if isinstance(each, Tensor):
                    each.zero_()

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take one step."""
        if self.device == "cpu":
            return self._step(x, y)
        if x.shape not in self.graphs:
            before = self.read()
            self.graphs[x.shape] = self._captured(x, y)
            self.write(before)  # only before anything counts: moments are gone too
        graph, images, labels = self.graphs[x.shape]
        images.copy_(x)
        labels.copy_(y)
        graph.replay()
        return None

    def _captured(self, x: Tensor, y: Tensor) -> tuple[Any, Tensor, Tensor]:
        images, labels = x.clone(memory_format=torch.channels_last), y.clone()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self._step(images, labels)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(images, labels)
        return graph, images, labels

    def _step(self, x: Tensor, y: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=False)
        with self._half():
            loss = F.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def _half(self) -> Any:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda", cache_enabled=False)

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Score it on bytes x."""
        self.model.eval()
        hits = 0
        for a in range(0, len(y), SCORED):
            with self._half():
                guess = self.model(to_input(x[a : a + SCORED], torch.float32)).argmax(1)
            hits += int((guess == y[a : a + SCORED]).sum())
        self.model.train()
        return hits / len(y)


def moved(x: Tensor, way: Way, noise: torch.Generator) -> Tensor:
    """Flip, turn and shift images [n Ch H W] in [-1, 1]; what comes in from outside is black."""
    n, channels, side, _ = x.shape

    def drawn(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=noise, device=x.device)

    if "f" in way.moves:
        x = torch.where((drawn(0, 1) < 0.5)[:, None, None, None], x.flip(3), x)
    if "t" in way.moves:
        angle = drawn(-TURN, TURN) * (math.pi / 180)
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        turn = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
        grid = F.affine_grid(turn, list(x.shape), align_corners=False)
        x = F.grid_sample(x + 1, grid, mode="nearest", align_corners=False) - 1
    if "s" in way.moves:
        out = way.crop or side
        padded = F.pad(x, (PAD, PAD, PAD, PAD), value=-1.0)
        top, left = (drawn(0, side + 2 * PAD + 1 - out).long()[:, None] for _ in range(2))
        along = torch.arange(out, device=x.device)
        each, ch = torch.arange(n, device=x.device), torch.arange(channels, device=x.device)
        rows, columns = (top + along)[:, None, :, None], (left + along)[:, None, None]
        x = padded[each[:, None, None, None], ch[:, None, None], rows, columns]
    return x


class Clients:
    """Clients' samples on a device, and how each trains."""

    def __init__(self, way: Way, dealt: Federation, device: str) -> None:
        self.way, self.device = way, device
        self.net = Trained(way, dealt.shape, dealt.classes, device)
        self.rng = np.random.default_rng(way.seed)
        self.noise = torch.Generator(device).manual_seed(way.seed)
        own = [dealt.train.of(i) for i in range(dealt.clients)]
        self.own = [(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)) for x, y in own]
        self._capture()

    def _capture(self) -> None:
        """Meet every shape of batch once, so that capturing disturbs no training."""
        start = self.net.read()
        sizes = {
            n for _, y in self.own for n in (min(len(y), BATCH), len(y) % BATCH if len(y) > BATCH else 0)
        }
        for size in sorted(sizes - {0, 1}) if self.device == "cuda" else []:
            x, y = next((x, y) for x, y in self.own if len(y) >= size)
            self.net.step(self._inputs(x[:size]), y[:size])
        self.net.write(start)

    def _inputs(self, x: Tensor) -> Tensor:
        images = to_input(x, torch.float32)
        return moved(images, self.way, self.noise) if self.way.moves else images

    def train(self, client: int, start: list[Tensor]) -> None:
        """Train a client's model from `start`, in place."""
        self.net.write(start)
        x, y = self.own[client]
        for _ in range(EPOCHS):
            order = torch.from_numpy(self.rng.permutation(len(y))).to(self.device)
            for part in torch.split(order, BATCH):
                if len(part) > 1:
                    self.net.step(self._inputs(x[part]).contiguous(), y[part])


def alone(way: Way, dealt: Federation, device: str, rounds: int) -> dict[str, Any]:
    """Average five clients' models a round; score the average on the group's test set."""
    clients = Clients(way, dealt, device)
    test = tuple(torch.from_numpy(each).to(device) for each in dealt.test.of(0))
    model, count = clients.net.read(), len(clients.net.params)
    curve = {}
    for r in range(1, rounds + 1):
        gathered: list[list[Tensor]] = []
        for client in clients.rng.choice(dealt.clients, PICKED, replace=False).tolist():
            clients.train(client, model)
            gathered.append(clients.net.read())
        model = [torch.stack(each).mean(0) for each in zip(*gathered, strict=True)]
        if way.statistics == "first":
            model[count:] = gathered[0][count:]
        if r % 10 == 0 or r > rounds - LAST:
            clients.net.write(model)
            curve[r] = round(clients.net.accuracy(*test), 4)
    last = [value for r, value in curve.items() if r > rounds - LAST]
    return {"accuracy": round(float(np.mean(last)), 4), "sd": round(float(np.std(last)), 4), "curve": curve}


def firsts(way: Way, dealt: Federation, device: str) -> dict[str, Any]:
    """Train every client once from the initial model; seek groups in their updates."""
    clients = Clients(way, dealt, device)
    start, count = clients.net.read(), len(clients.net.params)
    before = torch.cat([each.flatten() for each in start[:count]])
    updates = []
    for client in range(dealt.clients):
        clients.train(client, start)
        updates.append(torch.cat([each.detach().flatten() for each in clients.net.params]) - before)
    rows = torch.stack(updates).double()
    return groups_in((rows @ rows.T).cpu().numpy(), dealt.group)


def groups_in(gram: Floats, group: Ints) -> dict[str, Any]:
    """Seek groups in updates by their products [n n]; tell how far they agree with the true ones."""
    norm = np.sqrt(np.diag(gram))
    cosine = gram / np.outer(norm, norm)
    linked = connected_components(cosine >= threshold_for(cosine, PARTS), directed=False)[1]
    found = {"linked": linked, "described": described(gram), "placed": placed(gram)}
    rng = np.random.default_rng(0)
    late: dict[str, list[float]] = {"described": [], "placed": []}
    for _ in range(DRAWS):
        for how, score in joined(gram, group, rng.choice(len(gram), EARLY, replace=False)).items():
            late[how].append(score)
    pairs = np.triu_indices(len(gram), 1)
    alike = group[pairs[0]] == group[pairs[1]]
    return {
        **{how: round(float(adjusted_rand_score(group, cluster)), 3) for how, cluster in found.items()},
        **{f"{how}_late": [round(float(f(x)), 3) for f in (np.mean, np.std)] for how, x in late.items()},
        "cosine_within": round(float(cosine[pairs][alike].mean()), 3),
        "cosine_between": round(float(cosine[pairs][~alike].mean()), 3),
    }


def described(gram: Floats) -> Ints:
    """Cluster updates by their cosines with the leading directions, as FedGroup does."""
    values, vectors = np.linalg.eigh(gram)
    features = gram @ vectors[:, -PARTS:] / np.sqrt(np.diag(gram))[:, None] / np.sqrt(values[-PARTS:])
    return _kmeans(features)


def placed(gram: Floats) -> Ints:
    """Cluster updates by their distances, as FeSEM begins."""
    centred = np.eye(len(gram)) - 1 / len(gram)
    values, vectors = np.linalg.eigh(centred @ gram @ centred)
    return _kmeans(vectors * np.sqrt(values.clip(0)))


def _kmeans(features: Floats) -> Ints:
    found: Ints = KMeans(PARTS, n_init=10, random_state=0).fit_predict(features).astype(np.int64)
    return found


def joined(gram: Floats, group: Ints, early: Ints) -> dict[str, float]:
    """Seek groups among early clients; the others join the mean update that is likest.

    They are counted five times: of 100 clients 80 come after the first round, of 36 here 16.
    """
    late = np.setdiff1d(np.arange(len(gram)), early)
    counted = np.concatenate([early, np.tile(late, 5)])
    scores = {}
    for how, seek in (("described", described), ("placed", placed)):
        cluster = seek(gram[np.ix_(early, early)])
        mean = np.zeros((len(gram), PARTS))
        mean[early, cluster] = 1
        mean /= mean.sum(0)
        with_means = gram @ mean
        square = (mean * with_means).sum(0)
        like = with_means / np.sqrt(square) if how == "described" else 2 * with_means - square
        everybody = like.argmax(1)
        everybody[early] = cluster
        scores[how] = float(adjusted_rand_score(group[counted], everybody[counted]))
    return scores


def misread(samples: Samples) -> Samples:
    """Lay images out as height, width, channel and read them as channel, height, width."""
    return replace(samples, x=samples.x.transpose(0, 2, 3, 1).reshape(samples.x.shape))


def deal(way: Way, data: Path | None) -> Federation:
    """Give clients their samples: one group, or four of a setting."""
    dataset = load_npz(data / f"{way.dataset}.npz") if data else load_dataset(way.dataset)
    known = way.dataset, dataset.classes, PARTS
    if way.setting == "pairs":
        views, skew = [f"swap:{a},{b}" for a, b in SWAPS["mnist"]], False
    elif way.setting:
        views, skew = default_transforms(way.setting, *known), way.setting == "csf"
    else:
        views, skew = [way.view], way.skew
    dealt = build_federation(
        dataset, seed=way.seed, clients=way.clients, groups=len(views), holdout=way.holdout,
        heterogeneity="none", transforms=views, label_skew=skew,
    )  # fmt: skip
    if way.misread:
        dealt = replace(dealt, train=misread(dealt.train), test=misread(dealt.test))
    return dealt


def play(name: str, way: Way, data: Path | None, out: Path, rounds: int) -> None:
    """Try one way, and write its line."""
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    dealt = deal(way, data)
    found = firsts(way, dealt, device) if way.setting else alone(way, dealt, device, rounds)
    seconds = round(time.monotonic() - began, 1)
    sizes = {"samples": len(dealt.train.y), "tests": len(dealt.test.of(0)[1]), "rounds": rounds}
    ResultsFile(out).add(
        {"name": name, "way": asdict(way), **found, **sizes, "seconds": seconds, **provenance(device)}
    )
    print(name, found.get("accuracy", ""), found.get("sd", ""), seconds, "s", flush=True)


def run(args: argparse.Namespace) -> None:
    """Try what is missing, several at once; exit with 1 if one of them fails."""
    have = {line["name"] for line in ResultsFile(args.out).read()}
    todo = [(n, w) for n, w in ways().items() if n not in have and (not args.only or n in args.only)]
    context = torch.multiprocessing.get_context("spawn")
    running: list[Any] = []
    failed = False
    until = time.monotonic() + args.minutes * 60
    while todo or running:
        failed |= any(process.exitcode for process in running)
        running = [process for process in running if process.is_alive()]
        while todo and len(running) < args.processes and time.monotonic() < until:
            process = context.Process(target=play, args=(*todo.pop(0), args.data, args.out, args.rounds))
            process.start()
            running.append(process)
        if time.monotonic() >= until:
            todo = []
        time.sleep(0.2)
    sys.exit(int(failed))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/one-group.jsonl"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=600, help="start nothing new after this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
