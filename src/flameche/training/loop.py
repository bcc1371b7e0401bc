"""The plain trainer: one client after another, batch after batch. Other trainers are tested against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from flameche.data.federation import Federation, Samples
from flameche.errors import ConfigError
from flameche.models.features import to_input
from flameche.rng import stream_seed
from flameche.training.augment import augment_generator, augment_images
from flameche.training.device import finish
from flameche.training.models import Models, read_module, split_like, write_module
from flameche.training.trainer import Arrays, Floats, Ints, Part, Pull, Sgd, TrainingPlan, batches

SCORE_BATCH = 1000
ScoreChunk = tuple[int, int, int, int]  # to evaluate: row of the models, client, first sample, last + 1


@dataclass(frozen=True)
class DeviceSamples:
    """Samples of several sets on a device, as bytes; set i is x[offsets[i]:offsets[i + 1]]."""

    x: Tensor
    y: Tensor
    offsets: Ints

    @classmethod
    def of(cls, samples: Samples, device: str) -> DeviceSamples:
        """Copy samples to a device."""
        x, y = torch.from_numpy(samples.x), torch.from_numpy(samples.y)
        return cls(x.to(device), y.to(device), samples.offsets)


class LoopTrainer:
    """Trains one client after another on one device, where the data stay as bytes.

    `fresh` returns the number-th additional initial model, for methods that start from several.
    """

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        plan: TrainingPlan,
        seed: int,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        fresh: Callable[[int], nn.Module] | None = None,
    ) -> None:
        self.plan, self.seed, self.device, self.dtype = plan, seed, device, dtype
        self.model = model.to(device=device, dtype=dtype)
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())
        if normed and plan.batch < 2:
            raise ConfigError(
                "training.batch = 1: the model has BatchNorm, which needs batches of at least 2"
            )
        self.shape, self.classes = federation.shape, federation.classes
        self.sizes: Ints = federation.train.sizes
        parts: dict[Part, Samples] = {"train": federation.train, "held": federation.holdout}
        self._samples = {part: DeviceSamples.of(samples, device) for part, samples in parts.items()}
        self._samples["test"] = DeviceSamples.of(federation.test, device)
        self._test_of = federation.test_of
        self._initial = read_module(self.model)
        self._fresh = fresh
        # Each client's own BatchNorm statistics [C Q], if they stay local.
        local = plan.bn_buffers == "local"
        self._local_buffers = self._initial[1].repeat(len(self.sizes), 1) if local else None

    def initial(self, number: int = 0) -> Models:
        """Return an initial model as one row: the shared one, or another draw."""
        params, buffers = self._initial
        if number > 0:
            if self._fresh is None:
                raise ValueError("this trainer was given one initial model only")
            params, buffers = read_module(self._fresh(number).to(device=self.device, dtype=self.dtype))
        return Models(params[None].clone(), buffers[None].clone())

    def train(
        self,
        models: Models,
        pick: Ints,
        clients: Ints,
        round: int,
        pull: Pull | None = None,
        sgd: Sgd | None = None,
    ) -> Models:
        """Train clients [n], each from row pick[n] of models."""
        trained = []
        with torch.random.fork_rng(devices=["cuda"] if self.device == "cuda" else []):
            for k, i in zip(pick.tolist(), clients.tolist(), strict=True):
                trained.append(self.train_one(models, k, i, round, pull, sgd))
        finish(self.device)
        return Models(torch.stack([params for params, _ in trained]), torch.stack([b for _, b in trained]))

    def train_one(
        self, models: Models, k: int, client: int, round: int, pull: Pull | None, sgd: Sgd | None
    ) -> tuple[Tensor, Tensor]:
        """Train one client from row k of models; return its parameters [P] and buffers [Q]."""
        # Dropout and the like draw from torch's global generator.
        torch.manual_seed(stream_seed(self.seed, "forward", round, client) % 2**63)
        buffers = models.buffers[k] if self._local_buffers is None else self._local_buffers[client]
        write_module(self.model, models.params[k], buffers)
        self.model.train()
        own = self._samples["train"]
        start, stop = own.offsets[client], own.offsets[client + 1]
        x, y = to_input(own.x[start:stop], self.dtype), own.y[start:stop]
        weights = list(self.model.parameters())
        targets = split_like(pull.target.params[0], weights) if pull else []
        generator = augment_generator(client, self.seed, round)
        optimiser = self._optimiser(weights, sgd or self.plan.sgd)
        for index in batches(len(y), self.plan, self.seed, round, client):
            rows = torch.from_numpy(index).to(self.device)
            inputs = augment_images(x[rows], generator, self.plan.turn) if self.plan.augment else x[rows]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            if pull:
                for weight, target in zip(weights, targets, strict=True):
                    if weight.grad is not None:
                        weight.grad.add_(weight.detach() - target, alpha=pull.strength)
            optimiser.step()
        params, buffers = read_module(self.model)
        if self._local_buffers is not None:
            self._local_buffers[client] = buffers
        return params, buffers

    def _optimiser(self, weights: list[nn.Parameter], sgd: Sgd | None) -> torch.optim.Optimizer:
        if sgd is not None:
            return torch.optim.SGD(weights, lr=sgd.lr, momentum=sgd.momentum)
        return torch.optim.Adam(weights, lr=self.plan.lr)

    def layer(self, name: str) -> slice:
        """Return the slice of a flat model that holds a layer's parameters."""
        start, found = 0, slice(0, 0)
        for own, weight in self.model.named_parameters():
            if own == name or own.startswith(f"{name}."):
                found = slice(found.start if found.stop else start, start + weight.numel())
            start += weight.numel()
        if not found.stop:
            known = dict.fromkeys(own.rpartition(".")[0] for own, _ in self.model.named_parameters())
            raise ConfigError(f"the model has no layer '{name}'; known are {', '.join(known)}")
        return found

    def accuracy(self, models: Models, pick: Ints) -> Floats:
        """Return the accuracy of row pick[i] of models on client i's test set."""
        return self._score(models, pick, self._test_of, np.arange(len(pick)), "test")[1]

    def judge(self, models: Models, pick: Ints, clients: Ints, part: Part) -> tuple[Floats, Floats]:
        """Evaluate row pick[n] of models on clients [n]: mean loss [n], accuracy [n]; NaN without samples."""
        return self._score(models, pick, self._test_of[clients] if part == "test" else clients, clients, part)

    def _score(
        self, models: Models, pick: Ints, sets: Ints, clients: Ints, part: Part
    ) -> tuple[Floats, Floats]:
        """Evaluate models on sets of samples with the clients' own buffers; equal requests only once."""
        who = clients if self._local_buffers is not None else np.zeros(len(pick), np.int64)
        requests = np.stack([pick, sets, who], axis=1)
        unique, back = np.unique(requests, axis=0, return_inverse=True)
        chunks: list[ScoreChunk] = []
        owner: list[int] = []
        for number, (k, i, client) in enumerate(unique.tolist()):
            start, stop = self._samples[part].offsets[i : i + 2].tolist()
            found = [(k, client, a, min(a + SCORE_BATCH, stop)) for a in range(start, stop, SCORE_BATCH)]
            chunks.extend(found)
            owner.extend([number] * len(found))
        sums = np.zeros((len(unique), 2))
        for number, both in zip(owner, self._score_chunks(models, part, chunks), strict=True):
            sums[number] += both
        with np.errstate(invalid="ignore"):  # NaN without samples
            answers: Floats = sums / np.diff(self._samples[part].offsets)[unique[:, 1], None]
        return answers[back.reshape(-1), 0], answers[back.reshape(-1), 1]

    def _score_chunks(
        self, models: Models, part: Part, chunks: list[ScoreChunk]
    ) -> list[tuple[float, float]]:
        """Return the sum of losses and the number of correct predictions of each chunk."""
        return [self.score_chunk(models, part, chunk) for chunk in chunks]

    @torch.no_grad()
    def score_chunk(self, models: Models, part: Part, chunk: ScoreChunk) -> tuple[float, float]:
        """Return the sum of losses and the number of correct predictions of one chunk."""
        k, client, a, b = chunk
        buffers = models.buffers[k] if self._local_buffers is None else self._local_buffers[client]
        write_module(self.model, models.params[k], buffers)
        data = self._samples[part]
        guess = self.model.eval()(to_input(data.x[a:b], self.dtype))
        loss = nn.functional.cross_entropy(guess, data.y[a:b], reduction="sum")
        return float(loss), int((guess.argmax(1) == data.y[a:b]).sum())

    def state(self) -> Arrays:
        """Return the clients' own BatchNorm statistics, if they keep their own."""
        return {} if self._local_buffers is None else {"local_buffers": self._local_buffers.cpu().numpy()}

    def restore(self, arrays: Arrays) -> None:
        """Restore what `state` returned."""
        if self._local_buffers is not None:
            self._local_buffers.copy_(torch.from_numpy(arrays["local_buffers"]))

    def use_local_buffers(self, statistics: Tensor) -> None:
        """Keep the clients' own BatchNorm statistics [C Q] in this memory from now on."""
        self._local_buffers = statistics

    def close(self) -> None:
        """Do nothing: there is only memory to free."""
