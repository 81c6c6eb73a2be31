"""r1-cifar100: rank-1 WRN-28-10 on 100 classes (Rank-1 BNNs, table 3)."""

from __future__ import annotations

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes import _r1_table as table
from leanbayes.reproduce.result import Outcome
from leanbayes.reproduce.run import Run

# NLL, accuracy in percent, ECE.
_PUBLISHED = {
    "deterministic": (0.875, 79.8, 0.085),
    "batchensemble": (0.734, 81.5, 0.033),
    "dropout": (0.830, 79.6, 0.050),
    "mfvi": (1.030, 77.3, 0.111),
    "normal": (0.692, 81.3, 0.018),
    "cauchy": (0.689, 82.4, 0.012),
    "ensemble-narrow": (0.694, 81.5, 0.017),
    "ensemble": (0.666, 82.7, 0.021),
}
# Of the NLL from the deterministic network to the ensemble; published: 88 % (Gaussian) and 89 % (Cauchy).
_CLOSED = 85.0
# The dearest question: --set networks=[...] adds the others.
_SOME = ("deterministic", "batchensemble", "normal", "cauchy", "ensemble")


def measure(run: Run) -> Outcome:
    """Train the networks of the table, and compare their predictions."""
    return table.measure(run, "cifar100", _PUBLISHED, _CLOSED)


register(
    Recipe(
        id="r1-cifar100",
        title="WRN-28-10 on 100 classes: rank-1 Gaussian and Cauchy factors against BatchEnsemble and ensembles",
        presets={
            name: {"networks": r1.TABLE if name == "paper" else _SOME, **values} for name, values in r1.PRESETS.items()
        },
        seeds=r1.SEEDS,
        measure=measure,
        draw=table.draw,
    )
)
