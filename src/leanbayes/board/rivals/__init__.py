"""What a user would pick instead, each with its library's defaults; imported only where it is run."""

from __future__ import annotations

from leanbayes.board.contender import Contender
from leanbayes.board.rivals import boosting, conformal, laplace, processes, tabm, trees

# A Gaussian process takes the cube of the rows in time.
_PROCESS_ROWS = 2000
# TabM takes an hour for a split of a table with more.
_TABM_ROWS = 2000

RIVALS = {
    "random-forest": Contender("random forest", regress=trees.forest_regressor, classify=trees.forest_classifier),
    "gradient-boosting": Contender(
        "gradient boosting (scikit-learn)", regress=trees.boosted_regressor, classify=trees.boosted_classifier
    ),
    "gaussian-process": Contender(
        "Gaussian process", regress=processes.regressor, classify=processes.classifier, most_rows=_PROCESS_ROWS
    ),
    "ngboost": Contender("NGBoost", regress=boosting.natural_regressor, classify=boosting.natural_classifier),
    "catboost": Contender(
        "CatBoost with uncertainty", regress=boosting.cat_regressor, classify=boosting.cat_classifier
    ),
    "tabm": Contender(
        "TabM", regress=tabm.regressor, classify=tabm.classifier, on_device=True, most_rows_on_cpu=_TABM_ROWS
    ),
    "laplace": Contender("last-layer Laplace (laplace-torch)", regress=laplace.regressor, classify=laplace.classifier),
    "conformal": Contender("gradient boosting, conformal intervals (MAPIE)", regress=conformal.regressor),
}

__all__ = ["RIVALS"]
