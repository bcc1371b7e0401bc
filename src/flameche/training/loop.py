"""The plain trainer: one client after another, one batch after another. The oracle for faster ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flameche.data.federation import Federation
from flameche.errors import ConfigError
from flameche.models.features import to_input
from flameche.rng import stream_seed
from flameche.training.models import Models, read_module, write_module
from flameche.training.trainer import Arrays, Ints, TrainingPlan, batches

SCORE_BATCH = 1000


class LoopTrainer:
    """Trains on one device, with the data kept there as bytes."""

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        plan: TrainingPlan,
        seed: int,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.plan, self.seed, self.device, self.dtype = plan, seed, device, dtype
        self.model = model.to(device=device, dtype=dtype)
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())
        if normed and plan.batch < 2:
            raise ConfigError(
                "training.batch = 1: the model has BatchNorm, which needs batches of at least 2"
            )
        train, test = federation.train, federation.test
        self.sizes: Ints = train.sizes
        self._offsets, self._test_offsets, self._test_of = train.offsets, test.offsets, federation.test_of
        self._x, self._y = torch.from_numpy(train.x).to(device), torch.from_numpy(train.y).to(device)
        self._test_x, self._test_y = torch.from_numpy(test.x).to(device), torch.from_numpy(test.y).to(device)
        self._initial = read_module(self.model)
        # Own BatchNorm statistics of each client [C Q], where they stay local.
        local = plan.bn_buffers == "local"
        self._local = self._initial[1].repeat(len(self.sizes), 1) if local else None

    def initial(self) -> Models:
        """Give the shared initial model, as one row."""
        params, buffers = self._initial
        return Models(params[None].clone(), buffers[None].clone())

    def train(self, models: Models, pick: Ints, clients: Ints, round: int) -> Models:
        """Train clients [n], each from row pick[n] of models."""
        trained = []
        with torch.random.fork_rng(devices=["cuda"] if self.device == "cuda" else []):
            for k, i in zip(pick.tolist(), clients.tolist(), strict=True):
                # Dropout and the like draw from torch's own generator.
                torch.manual_seed(stream_seed(self.seed, "forward", round, i) % 2**63)
                trained.append(self._train_one(models, k, i, round))
        return Models(torch.stack([params for params, _ in trained]), torch.stack([b for _, b in trained]))

    def _train_one(self, models: Models, k: int, client: int, round: int) -> tuple[Tensor, Tensor]:
        buffers = models.buffers[k] if self._local is None else self._local[client]
        write_module(self.model, models.params[k], buffers)
        self.model.train()
        start, stop = self._offsets[client], self._offsets[client + 1]
        x, y = to_input(self._x[start:stop], self.dtype), self._y[start:stop]
        noise = torch.Generator().manual_seed(stream_seed(self.seed, "augment", round, client) % 2**63)
        optimiser = torch.optim.Adam(self.model.parameters(), lr=self.plan.lr)
        for index in batches(len(y), self.plan, self.seed, round, client):
            rows = torch.from_numpy(index).to(self.device)
            inputs = flip_and_crop(x[rows], noise) if self.plan.augment else x[rows]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        params, buffers = read_module(self.model)
        if self._local is not None:
            self._local[client] = buffers
        return params, buffers

    @torch.no_grad()
    def accuracy(self, models: Models, pick: Ints) -> NDArray[np.float64]:
        """Score row pick[i] of models on client i's test set; equal questions are asked once."""
        who = np.arange(len(pick)) if self._local is not None else np.zeros(len(pick), np.int64)
        questions = np.stack([pick, self._test_of, who], axis=1)
        unique, back = np.unique(questions, axis=0, return_inverse=True)
        self.model.eval()
        scores = np.array([self._score(models, *map(int, question)) for question in unique])
        result: NDArray[np.float64] = scores[back.reshape(-1)]
        return result

    def _score(self, models: Models, k: int, test: int, client: int) -> float:
        buffers = models.buffers[k] if self._local is None else self._local[client]
        write_module(self.model, models.params[k], buffers)
        start, stop = int(self._test_offsets[test]), int(self._test_offsets[test + 1])
        right = 0
        for a in range(start, stop, SCORE_BATCH):
            b = min(a + SCORE_BATCH, stop)
            guess = self.model(to_input(self._test_x[a:b], self.dtype)).argmax(1)
            right += int((guess == self._test_y[a:b]).sum())
        return right / (stop - start)

    def state(self) -> Arrays:
        """Give the clients' own BatchNorm statistics, where they have some."""
        return {} if self._local is None else {"local_buffers": self._local.cpu().numpy()}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        if self._local is not None:
            self._local = torch.from_numpy(arrays["local_buffers"]).to(self.device)


def flip_and_crop(x: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Mirror half of the images [n Ch H W] and shift each by up to `pad` pixels, black beyond the border."""
    n, _, height, width = x.shape
    flip = torch.rand(n, generator=generator) < 0.5
    shift = torch.randint(0, 2 * pad + 1, (n, 2), generator=generator)
    flip, shift = flip.to(x.device), shift.to(x.device)
    x = torch.where(flip[:, None, None, None], x.flip(3), x)
    padded = nn.functional.pad(x, (pad, pad, pad, pad), value=-1.0)  # -1 is black after to_input
    rows = shift[:, 0, None] + torch.arange(height, device=x.device)
    columns = shift[:, 1, None] + torch.arange(width, device=x.device)
    each = torch.arange(n, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
