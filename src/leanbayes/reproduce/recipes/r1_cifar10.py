"""r1-cifar10: rank-1 WRN-28-10 against seven others on CIFAR-10 (Rank-1 BNNs, table 2)."""

from __future__ import annotations

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes import _r1_table as table
from leanbayes.reproduce.result import Outcome
from leanbayes.reproduce.run import Run

# NLL, accuracy in percent, ECE.
_PUBLISHED = {
    "deterministic": (0.159, 96.0, 0.023),
    "batchensemble": (0.143, 96.2, 0.020),
    "dropout": (0.160, 95.9, 0.024),
    "mfvi": (0.214, 94.7, 0.029),
    "normal": (0.128, 96.3, 0.008),
    "cauchy": (0.120, 96.5, 0.009),
    "ensemble-narrow": (0.115, 96.3, 0.008),
    "ensemble": (0.114, 96.6, 0.010),
}
# Of the NLL from the deterministic network to the ensemble; published: 69 % (Gaussian) and 87 % (Cauchy).
_CLOSED = 69.0
# Seeds of the better of Gaussian and Cauchy factors, where the others have fewer.
_WINNER = {"smoke": (0, 1), "short": (0, 1, 2), "paper": (0, 1, 2)}


def measure(run: Run) -> Outcome:
    """Train the networks of the table and of the block of equal compute, and compare their predictions."""
    return table.measure(run, "cifar10", _PUBLISHED, _CLOSED)


register(
    Recipe(
        id="r1-cifar10",
        title="WRN-28-10 on CIFAR-10: rank-1 Gaussian and Cauchy factors against six others, and at equal compute",
        presets={
            name: {"networks": (*r1.TABLE, *r1.EQUAL_COMPUTE), "winner_seeds": _WINNER[name], **values}
            for name, values in r1.PRESETS.items()
        },
        seeds=r1.SEEDS,
        measure=measure,
        draw=table.draw,
    )
)
