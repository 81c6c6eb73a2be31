"""The board: what this library has and what else a user would pick, on the same data under the same rules.

On tables, every contender gets the training rows and a seed, and nothing is tuned for a table; `leanbayes reproduce
board-tables` runs it. On images and text every method is trained as `leanbayes compare` does it; that is
`board-networks`.
"""

from leanbayes.board.contender import Contender, Forecaster
from leanbayes.board.scores import class_scores, regression_scores

__all__ = ["Contender", "Forecaster", "class_scores", "regression_scores"]
