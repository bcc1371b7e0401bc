"""Data that drift in a simulation: clients keep their samples, which from then on look as another group's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flameche.data import Federation
from flameche.experiments.extraction import Extraction
from flameche.metadata.extractors import ClientSamples, Metadata
from flameche.methods.base import Ints, World
from flameche.privacy.noise import NoisySource
from flameche.training.trainer import Trainer


class DataDrift:
    """Changes training data, test sets, metadata and the truth of drifting clients, for any method.

    The federation is dealt anew with `moved` clients, which changes nobody else's data, and the trainer is
    built anew on it: trainers keep data on their device in layouts of their own.
    """

    def __init__(
        self,
        deal: Callable[[Mapping[int, int]], Federation],
        samples: Callable[[Federation], ClientSamples],
        extraction: Extraction,
        trainer: Callable[[Federation], Trainer] | None,
        source: NoisySource | None = None,
    ) -> None:
        self._deal, self._samples = deal, samples
        self._extraction, self._trainer, self._source = extraction, trainer, source
        self._moved: dict[int, int] = {}

    def __call__(self, world: World, clients: Ints, to: Ints) -> None:
        """Let clients [n] have data of groups [n] from now on."""
        if world.has_metadata:
            self._extraction.fitted_if_shared(lambda: self._samples(self._deal({})))
        self._moved |= dict(zip(clients.tolist(), to.tolist(), strict=True))
        federation = self._deal(self._moved)
        world.group = federation.group
        if self._trainer is not None:
            trainer = self._trainer(federation)
            trainer.restore(world.trainer.state())
            world.trainer.close()
            world.trainer = trainer
        if world.has_metadata:
            with world.ledger.clock("client", "extraction"):
                rows = self._rows(clients, federation).checked(clients.tolist())
            if self._source is not None:
                world.ledger.released(clients)
            world.known_metadata = world.metadata.with_rows(clients, rows)

    def _rows(self, clients: Ints, federation: Federation) -> Metadata:
        """Give the new metadata of clients [n]; with noise, they are a new release."""

        def exact() -> Metadata:
            return self._extraction(self._samples(federation).of(clients))

        return self._source.release(clients, exact) if self._source else exact()
