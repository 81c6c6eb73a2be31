"""Train and measure several methods on one data set with one budget."""

from leanbayes.compare.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from leanbayes.compare.networks import default_network
from leanbayes.compare.presets import PRESETS, Preset, own_preset, preset
from leanbayes.compare.run import compare
from leanbayes.compare.seen import Seen
from leanbayes.compare.train import Budget, train
from leanbayes.compare.unseen import Unseen, unseen_rows

__all__ = [
    "PRESETS",
    "Budget",
    "Checkpoint",
    "Preset",
    "Seen",
    "Unseen",
    "compare",
    "default_network",
    "load_checkpoint",
    "own_preset",
    "preset",
    "save_checkpoint",
    "train",
    "unseen_rows",
]
