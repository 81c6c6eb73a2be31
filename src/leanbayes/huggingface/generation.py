"""generate: text from the average of several samples of a language model, with the uncertainty of every token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._components import every_component, mixture_parts
from leanbayes._modes import eval_mode
from leanbayes._prediction import Prediction
from leanbayes._sampling import Sampling, current_frame, fold, sampling, using
from leanbayes.objectives.likelihoods import Categorical


@dataclass(frozen=True)
class Generation:
    """Generated text.

    Attributes:
        sequences: Prompts and what was generated ``[B, T + N]``.
        tokens: What was generated ``[B, N]``.
        log_prob: Log-probability of each token under the average of the samples ``[B, N]``, NaN after the end.
        entropy: Entropy of the next token's distribution, in nats ``[B, N]``.
        mutual_information: How much of it is disagreement between samples ``[B, N]``: high where the model does not
            know.
    """

    sequences: Tensor
    tokens: Tensor
    log_prob: Tensor
    entropy: Tensor
    mutual_information: Tensor


def generate(
    model: Any,
    inputs: Tensor | Mapping[str, Tensor],
    samples: int = 8,
    *,
    seed: int | None = None,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    **options: Any,
) -> Generation:
    """Generate text from a converted language model, all samples reading the same text.

    Every sample is one function, drawn once for the whole text, with its own cache of keys and values. At each
    step the samples' probabilities are averaged and one token is chosen for all of them. Needs transformers.

    Args:
        model: A converted model with transformers' ``generate``.
        inputs: Tokens of the prompts ``[B, T]``, or what a tokenizer returns.
        samples: Number of samples; with a shared component index, rounded up to a multiple of K.
        seed: Makes weights and tokens repeatable.
        do_sample: Draw tokens from the averaged distribution, instead of taking the most probable one.
        temperature: Divides the averaged log-probabilities before a token is drawn.
        top_k: Draw from this many most probable tokens.
        top_p: Draw from the most probable tokens that together have this probability.
        options: For transformers' ``generate``: ``max_new_tokens``, ``eos_token_id``, ... One beam.

    Returns:
        A `Generation`. The uncertainties are those of the averaged distribution, before `temperature` and the like.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.huggingface import generate
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, eos_token_id=1, pad_token_id=0)
        >>> model = lb.bayesianize(GPT2LMHeadModel(config), lb.Rank1())
        >>> text = generate(model, torch.tensor([[2, 3], [4, 5]]), max_new_tokens=4, seed=0, eos_token_id=None)
        >>> text.sequences.shape, text.mutual_information.shape
        (torch.Size([2, 6]), torch.Size([2, 4]))
    """
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"{type(model).__name__} has no generate; pass a converted language model of transformers, which may be no "
            "deep ensemble"
        )
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples is a whole number from 1, not {samples!r}")
    if options.get("num_beams", 1) != 1 or options.get("num_return_sequences", 1) != 1:
        raise ValueError("generate follows one text per prompt; leave num_beams and num_return_sequences out")
    options["return_dict_in_generate"] = False  # whatever the model's own settings say: tokens are all that is read
    given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    warpers = _warpers(temperature, top_k, top_p) if do_sample else None
    with torch.no_grad(), eval_mode(model), sampling(hold=True, seed=seed) as state:
        state = _spread(model, samples, state)
        step = _SharedStep(state.n, warpers, seed)
        with using(state, current_frame()):
            sequences = model.generate(**fold(given, state.n), logits_processor=[step], do_sample=False, **options)
    return step.result(sequences, options.get("eos_token_id", model.generation_config.eos_token_id))


def _spread(model: nn.Module, samples: int, state: Sampling) -> Sampling:
    """A state of so many samples, every component of a shared index equally often."""
    parts = mixture_parts(model)
    if not parts:
        return state.replace(n=samples)
    each = math.ceil(samples / max(part.points for part in parts))
    return every_component(parts, each, next(model.parameters()), state)


def _warpers(temperature: float, top_k: int | None, top_p: float | None) -> list[Any]:
    """What transformers makes of the settings for drawing tokens."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: list[Any] = [TemperatureLogitsWarper(float(temperature))] if temperature != 1 else []
    warpers += [TopKLogitsWarper(top_k)] if top_k is not None else []
    return warpers + ([TopPLogitsWarper(top_p)] if top_p is not None else [])


class _SharedStep:
    """Chooses one token for all samples at every step of transformers' ``generate``, and notes what it knew.

    Args:
        n: Number of samples.
        warpers: Changes of the averaged log-probabilities before a token is drawn; None takes the most probable one.
        seed: Of the draws.
    """

    def __init__(self, n: int, warpers: list[Any] | None, seed: int | None) -> None:
        self.n = n
        self.warpers = warpers
        self.seed = seed
        self.generator: torch.Generator | None = None
        self.steps: list[tuple[Tensor, ...]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores that are finite for the chosen token alone."""
        prediction = Prediction(scores.unflatten(0, (self.n, -1)), Categorical())
        log_probs = prediction.probs.log()
        token = self._choose(input_ids[: len(log_probs)], log_probs)  # [B, 1]
        known = (log_probs.gather(1, token).squeeze(1), prediction.entropy, prediction.mutual_information)
        self.steps.append((token.squeeze(1), *known))
        return torch.full_like(scores, -math.inf).scatter(1, token.repeat(self.n, 1), 0.0)

    def _choose(self, input_ids: Tensor, log_probs: Tensor) -> Tensor:
        if self.warpers is None:
            return log_probs.argmax(-1, keepdim=True)
        for warper in self.warpers:
            log_probs = warper(input_ids, log_probs)
        if self.seed is not None and self.generator is None:
            self.generator = torch.Generator(log_probs.device).manual_seed(self.seed)
        return torch.multinomial(log_probs.softmax(-1), 1, generator=self.generator)

    def result(self, sequences: Tensor, eos_token_id: Any) -> Generation:
        """What was generated, with NaN where a text had ended."""
        sequences = sequences[: len(sequences) // self.n]
        _, *known = (torch.stack(values, 1) for values in zip(*self.steps))
        tokens = sequences[:, -known[0].shape[1] :]
        if eos_token_id is not None:
            ends = torch.isin(tokens, torch.as_tensor(eos_token_id, device=tokens.device))
            after = ends.cumsum(1) - ends.long() > 0
            known = [values.masked_fill(after, math.nan) for values in known]
        return Generation(sequences, tokens, *known)
