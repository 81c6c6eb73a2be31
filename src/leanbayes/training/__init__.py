"""The training engine: `fit` with a `TrainConfig`, and a LightningModule for those who use the Trainer."""

from typing import TYPE_CHECKING, Any

from leanbayes.nn.side_by_side import SideBySide
from leanbayes.training.alternate import Alternate
from leanbayes.training.callbacks import EpochEnd
from leanbayes.training.config import TrainConfig
from leanbayes.training.engine import fit
from leanbayes.training.errors import OutputError, TrainingInterrupted
from leanbayes.training.history import History
from leanbayes.training.many import fit_many
from leanbayes.training.weights import load_weights

if TYPE_CHECKING:
    from leanbayes.training.lightning_module import ELBOSteps as LitELBO

__all__ = [
    "Alternate",
    "EpochEnd",
    "History",
    "LitELBO",
    "OutputError",
    "SideBySide",
    "TrainConfig",
    "TrainingInterrupted",
    "fit",
    "fit_many",
    "load_weights",
]


# Not for type checkers, which would take any misspelt name for one that is there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Importing Lightning takes seconds, and one device does not need it.
        if name == "LitELBO":
            from leanbayes.training.lightning_module import lit_elbo

            return lit_elbo()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
