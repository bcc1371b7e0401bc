"""A method, metadata, a scheme, a partition, a dataset and a callback, as another package would add them."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from flameche.crypto.plain import Plain, PlainAdder, PlainKey
from flameche.crypto.registry import SchemeKind
from flameche.data import Dataset
from flameche.data.partition import Partition, PartitionOptions
from flameche.experiments.callbacks import Callback
from flameche.metadata.extractors import Metadata
from flameche.metadata.kinds import MetadataKind, MetadataOptions
from flameche.methods.base import About, MethodOptions
from flameche.methods.partitioned import Partitioned
from flameche.tables import Count


class AlternateOptions(MethodOptions):
    """How many clusters clients are counted off into."""

    parts: Count = 2


class Alternate(Partitioned):
    """Clients are counted off: 0, 1, 0, 1, ..."""

    Options = AlternateOptions
    about: ClassVar[About] = About("Alternate", "–", "sums", "model")

    def __init__(self, world, **options):
        super().__init__(world, np.arange(world.clients) % AlternateOptions(**options).parts)


class QuantileOptions(MetadataOptions):
    """How many quantiles there are."""

    levels: Count = 3


class Quantiles(MetadataKind):
    """Quantiles of the pixels of each class."""

    Options = QuantileOptions

    def extract(self, samples, progress=None):
        levels = np.linspace(0, 1, self.setting.options.levels + 2)[1:-1]
        counts = samples.counts
        phi = np.zeros((*counts.shape, len(levels)))
        for client, label in np.argwhere(counts > 0):
            own = samples.x[samples.cell == client * samples.classes + label]
            phi[client, label] = np.quantile(own / 255.0, levels)
        return Metadata(phi, counts)


class ShiftedKey(PlainKey):
    """Adds a number that only clients know to each value; it hides little, but adds up."""

    secret = 7.0

    def seal(self, vector):
        return super().seal(vector + self.secret)

    def open(self, data):
        total = PlainAdder().load(data)
        return total.values - total.terms * self.secret


class Shifted(Plain):
    """A scheme whose sums clients open."""

    name, opened_by = "shifted", "clients"

    def client_key(self):
        return ShiftedKey()


class _ShiftedKind(SchemeKind):
    def generate(self, *, clients, bound):
        return Shifted()


SHIFTED = _ShiftedKind("shifted", "every value shifted (acme)", "", "clients", "none", False)


class HalvesOptions(PartitionOptions):
    """Where the samples are cut."""

    first: float = 0.5


class Halves(Partition):
    """The first half of all clients share the first samples, the others the rest."""

    Options = HalvesOptions

    def deal(self, pool):
        cut, half = round(self.options.first * len(pool.labels)), pool.clients // 2
        every = np.arange(len(pool.labels))
        return [*np.array_split(every[:cut], half), *np.array_split(every[cut:], pool.clients - half)]


def stripes(test_split="default"):
    """Stripes that lie or stand (acme)."""
    draw, y = np.random.default_rng(3), np.arange(480) % 2
    x = draw.integers(0, 60, (480, 1, 8, 8))
    x[y == 0, :, ::2] += 150
    x[y == 1, :, :, ::2] += 150
    x = x.astype(np.uint8)
    return Dataset("stripes", 2, x[:400], y[:400], x[400:], y[400:])


class Diary(Callback):
    """Writes what it is told into diary.txt in the run's folder."""

    def on_start(self, experiment, seed, folder):
        self.file = folder / "diary.txt"
        self.file.write_text(f"{experiment.name} {seed}\n")

    def on_round(self, record):
        with self.file.open("a") as out:
            out.write(f"round {record['round']}\n")

    def on_end(self, summary):
        with self.file.open("a") as out:
            out.write(f"end {summary['method']}\n")


NOT_A_METHOD = replace(SHIFTED, name="other")
