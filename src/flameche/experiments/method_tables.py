"""The options of each method, as an experiment file gives them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from flameche.errors import ConfigError
from flameche.experiments.tables import Clusters, Count, MostClusters, Natural, Table


class MethodTable(Table):
    """A method's options; `needs` tells what the server must see: sums alone, or each client's term."""

    needs: ClassVar[Literal["sums", "terms"]] = "sums"
    kind: str

    @property
    def by_session(self) -> bool:
        """Tell whether clusters, and their number, come from a clustering session."""
        return False


class FlamecheConfig(MethodTable):
    """The paper's method; what `PAPER_ONLY` names belongs to its `mode = "paper"`.

    `tau = 0` never reclusters. `clusters = "auto"` chooses K before the first round, up to `most_clusters`.
    """

    PAPER_ONLY: ClassVar[tuple[str, ...]] = (
        *("tau", "empty", "init", "m_step", "unit_norm", "missing", "recluster_last"),
        *("recluster_over", "hide_assignments"),
    )

    kind: Literal["flameche"] = "flameche"
    clusters: Clusters = 4
    most_clusters: MostClusters = 8
    mode: Literal["sketch", "paper"] = "sketch"
    tau: Natural = 10
    empty: Literal["participants", "seen"] = "participants"
    init: Literal["partition", "vectors"] = "partition"
    m_step: Literal["seen", "participants"] = "seen"
    unit_norm: bool = False
    missing: Literal["counts", "impute", "zero"] = "counts"
    recluster_last: bool = False
    recluster_over: Literal["seen", "participants"] = "seen"
    hide_assignments: bool = False

    @property
    def by_session(self) -> bool:
        """Tell whether clusters come from a clustering session: in the default mode they do."""
        return self.mode == "sketch"

    @field_validator("mode", mode="before")
    @classmethod
    def _earlier(cls, mode: object) -> object:
        if mode == "robust":
            raise ConfigError(
                'method.mode = "robust" is no longer there; "sketch", the default, took its place: '
                "the same clusters from far fewer sums"
            )
        return mode


class FlamecheSoftConfig(MethodTable):
    """A mixture over metadata: soft EM after a clustering session; "full" is of the session's sketches."""

    kind: Literal["flameche-soft"] = "flameche-soft"
    clusters: Clusters = 4
    most_clusters: MostClusters = 8
    family: Literal["full", "vmf", "gaussian", "multinomial", "spherical"] = "full"
    training: Literal["likeliest", "weighted"] = "likeliest"

    @property
    def by_session(self) -> bool:
        """Tell that clusters come from a clustering session."""
        return True


class FedavgConfig(MethodTable):
    """One model for all clients."""

    kind: Literal["fedavg"] = "fedavg"


class OracleConfig(MethodTable):
    """One model per true group."""

    kind: Literal["oracle"] = "oracle"


class IfcaConfig(MethodTable):
    """K models, of which each client trains the one with the lowest loss; `restarts` in parallel."""

    kind: Literal["ifca"] = "ifca"
    clusters: Count = 4
    restarts: Count = 5
    first: Literal["loss", "random"] = "loss"


class FesemConfig(MethodTable):
    """K-means over the clients' weights; `start` gives the first centres, `layer` takes one layer alone.

    `newcomers` are compared with the centres as they have `moved`, or as they `first` were.
    """

    needs: ClassVar[Literal["sums", "terms"]] = "terms"
    kind: Literal["fesem"] = "fesem"
    clusters: Count = 4
    start: Literal["kmeans", "different", "shared"] = "kmeans"
    layer: str = ""
    newcomers: Literal["moved", "first"] = "moved"


class FedgroupConfig(MethodTable):
    """Groups by the directions of first updates, which the clients of `cold_rounds` rounds give."""

    needs: ClassVar[Literal["sums", "terms"]] = "terms"
    kind: Literal["fedgroup"] = "fedgroup"
    clusters: Count = 4
    cold_rounds: Count = 2
    newcomers: Literal["updates", "weights"] = "updates"


class StocflConfig(MethodTable):
    """Clusters that merge while similar; without `threshold`, one is searched on everybody's updates."""

    needs: ClassVar[Literal["sums", "terms"]] = "terms"
    kind: Literal["stocfl"] = "stocfl"
    clusters: Count = 4
    threshold: Annotated[float, Field(ge=-1, le=1)] | None = None
    mu: float = Field(default=0.05, ge=0)
    first: Literal["sgd", "adam"] = "sgd"


class KfedConfig(MethodTable):
    """One-shot k-means over class means."""

    needs: ClassVar[Literal["sums", "terms"]] = "terms"
    kind: Literal["kfed"] = "kfed"
    clusters: Count = 4


class PacflConfig(MethodTable):
    """One-shot clustering by angles between subspaces; `alpha` cuts the tree at a distance."""

    needs: ClassVar[Literal["sums", "terms"]] = "terms"
    kind: Literal["pacfl"] = "pacfl"
    clusters: Count = 4
    components: Count = 5
    angle: Literal["entry", "smallest", "sum", "raw-sum", "raw-cosine"] = "entry"
    linkage: Literal["average", "complete", "single"] = "average"
    alpha: Annotated[float, Field(gt=0)] | None = None


MethodConfig = Annotated[
    FlamecheConfig
    | FlamecheSoftConfig
    | FedavgConfig
    | OracleConfig
    | IfcaConfig
    | FesemConfig
    | FedgroupConfig
    | StocflConfig
    | KfedConfig
    | PacflConfig,
    Field(discriminator="kind"),
]
