"""Networks of other libraries as ours: their means, standard deviations and priors."""

from leanbayes.convert.foreign.checkpoint import import_state
from leanbayes.convert.foreign.network import import_model

__all__ = ["import_model", "import_state"]
