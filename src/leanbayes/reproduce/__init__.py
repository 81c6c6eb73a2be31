"""Published results as programs: recipes that run in legs, and result files with the published figures beside."""

from leanbayes.reproduce.execute import execute
from leanbayes.reproduce.ledger import BEYOND, LEDGER, SYSTEMS, status
from leanbayes.reproduce.leg import Leg, LegOver, PartDone
from leanbayes.reproduce.recipe import PRESETS, Recipe, register
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

__all__ = [
    "BEYOND",
    "LEDGER",
    "PRESETS",
    "SYSTEMS",
    "Check",
    "Leg",
    "LegOver",
    "Outcome",
    "PartDone",
    "Recipe",
    "Row",
    "Run",
    "execute",
    "register",
    "status",
]
