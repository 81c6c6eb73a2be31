"""Hugging Face: the Trainer, saving and loading, and generation with the uncertainty of every token.

Needs transformers, the Trainer accelerate as well (``pip install 'leanbayes[transformers]'``).
"""

from typing import TYPE_CHECKING, Any

from leanbayes._pretrained import from_pretrained, save_pretrained
from leanbayes.huggingface.generation import Generation, generate

if TYPE_CHECKING:
    from leanbayes.huggingface.trainer import ELBOTraining as BayesTrainer

__all__ = ["BayesTrainer", "Generation", "from_pretrained", "generate", "save_pretrained"]


# Not for type checkers, which would take any misspelt name for one that is there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Importing the Trainer takes seconds.
        if name == "BayesTrainer":
            from leanbayes.huggingface.trainer import bayes_trainer

            return bayes_trainer()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
