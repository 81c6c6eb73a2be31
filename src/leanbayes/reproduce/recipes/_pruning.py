"""What the recipes on pruning have in common."""

from __future__ import annotations

from collections.abc import Mapping

# What counts as no loss, in points of accuracy.
NO_LOSS = 0.1


def share_without_loss(dense: float, accuracies: Mapping[str, float]) -> float:
    """The largest share of weights up to which no level loses more than what counts as no loss.

    Args:
        dense: Accuracy with all weights, in percent.
        accuracies: Accuracies by the share that is gone, from the smallest on.
    """
    reached = 0.0
    for level, accuracy in accuracies.items():
        # Accuracies are whole numbers of images, their differences only nearly.
        if round(dense - accuracy, 9) > NO_LOSS:
            break
        reached = float(level)
    return reached
