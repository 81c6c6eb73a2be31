"""The board: our default estimators and what else a user would pick, on the same tables under the same rules.

Every contender gets the training rows and a seed, and nothing is tuned for a table. `leanbayes reproduce board-tables`
runs it.
"""

from leanbayes.board.contender import Contender, Forecaster
from leanbayes.board.scores import class_scores, regression_scores

__all__ = ["Contender", "Forecaster", "class_scores", "regression_scores"]
