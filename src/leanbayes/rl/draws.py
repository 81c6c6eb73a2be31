"""One draw of the weights per episode: a function of the episode's seed, for acting and again for the gradient."""

from __future__ import annotations

from collections.abc import Sequence

from leanbayes._sampling import Frame, Stream, current_sampling, using


def one_draw_each(seeds: Sequence[int]) -> using:
    """A context in which block s of a model's rows uses the weights drawn from ``seeds[s]``, in every call.

    The draws are a function of the seeds and of the parameters. So a context that is opened again with the same seeds,
    this time to be differentiated, has the weights that acted before.

    Args:
        seeds: One per episode.

    Example:
        >>> import torch, leanbayes as lb
        >>> layer = lb.bayesianize(torch.nn.Linear(3, 2), lb.VarianceLayer())
        >>> x = torch.ones(2, 3)
        >>> with one_draw_each([5, 6]):
        ...     first, second = layer(x)
        >>> with one_draw_each([6]):
        ...     again = layer(x)
        >>> torch.equal(first, second), torch.allclose(second, again[0]), torch.equal(again[0], again[1])
        (False, True, True)
    """
    streams = tuple(Stream(seed) for seed in seeds)
    # Every family can draw weights, and then takes from the streams what `Actors.draw_` takes.
    spec = current_sampling().replace(n=len(streams), joint=True, estimator="weight", streams=streams)
    return using(spec, Frame(held=True))
