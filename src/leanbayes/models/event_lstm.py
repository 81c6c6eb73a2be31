"""A recurrent classifier of hospital records as events, for the mortality task of the Rank-1 BNN paper."""

import torch
from torch import Tensor, nn

from leanbayes.models._options import check_positive
from leanbayes.models._registry import register
from leanbayes.models._sequence import last_step, match_rows


@register("event_lstm")
class EventLSTM(nn.Module):
    """Embeddings of the events of each hour, added up, an LSTM, a hidden dense layer and an output.

    As in Dusenberry et al. (2019, *Analyzing the Role of Model Uncertainty for Electronic Health Records*): the
    ``embedding`` may be Bayesian while the rest is not, or all of it. It is a dense layer on how often each event
    occurs in an hour, whose columns are the vectors of events: the same as looking them up and adding them, and faster.

    Args:
        vocabulary: Number V of events; their ids are 1 to V, and 0 is padding.
        embedding: Size of an event's vector.
        hidden: Units of the LSTM.
        dense: Units of the hidden dense layer.
        outputs: Units of the output; one is the logit of the positive class.

    Shape:
        Ids ``[B, T, E]``, up to E events in each of T hours, to ``[B, outputs]``.

    Example:
        >>> import torch
        >>> model = EventLSTM(vocabulary=50, embedding=8, hidden=8, dense=4)
        >>> model(torch.tensor([[[4, 7, 1], [9, 0, 0]]])).shape
        torch.Size([1, 1])
    """

    def __init__(
        self, vocabulary: int = 230, embedding: int = 32, hidden: int = 64, dense: int = 32, outputs: int = 1
    ) -> None:
        check_positive(vocabulary=vocabulary, embedding=embedding, hidden=hidden, dense=dense, outputs=outputs)
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Linear(vocabulary, embedding, bias=False)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.dense = nn.Linear(hidden, dense)
        self.activation = nn.ReLU()
        self.output = nn.Linear(dense, outputs)
        # So that the sum over an hour's events is of the order of one.
        nn.init.normal_(self.embedding.weight, std=0.3)

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Maps events to logits.

        Args:
            ids: Ids of events, ``[B, T, E]``; padding has no effect, and an hour may have no event.
            lengths: Hours of each record, ``[B]``; all T when None.

        Returns:
            Logits, ``[B, outputs]``.
        """
        outputs, _ = self.lstm(self.embedding(self._counts(ids)))  # [B, T, hidden]
        if lengths is None:
            lengths = torch.full((ids.shape[0],), ids.shape[1], device=ids.device)
        last = last_step(outputs, match_rows(lengths, outputs.shape[0]))
        return self.output(self.activation(self.dense(last)))

    def _counts(self, ids: Tensor) -> Tensor:
        """How often each event occurs in each hour, ``[B, T, V]``."""
        like = self.output.bias
        counts = torch.zeros(*ids.shape[:2], self.vocabulary + 1, dtype=like.dtype, device=ids.device)
        return counts.scatter_add_(2, ids, torch.ones_like(ids, dtype=like.dtype))[..., 1:]
