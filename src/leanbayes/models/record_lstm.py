"""A recurrent classifier of hospital records, for the mortality task of the Rank-1 BNN paper."""

import torch
from torch import Tensor, nn

from leanbayes.models._options import check_dropout, check_positive
from leanbayes.models._registry import register
from leanbayes.models._sequence import last_step, match_rows, valid_steps


@register("record_lstm")
class RecordLSTM(nn.Module):
    """An LSTM over time series of measurements and a dense layer on its output at the last step.

    Args:
        features: Measurements at each step; 76 in the usual hourly layout of MIMIC-III.
        hidden: Units of the LSTM.
        layers: LSTM layers.
        outputs: Units of the output; one is the logit of the positive class.
        dropout: Drop probability on the last step's output; no layer when 0.

    Shape:
        Records ``[B, T, features]`` to ``[B, outputs]``.

    Example:
        >>> import torch
        >>> model = RecordLSTM(features=5, hidden=8)
        >>> model(torch.zeros(2, 6, 5), lengths=torch.tensor([6, 3])).shape
        torch.Size([2, 1])
    """

    def __init__(self, features: int = 76, hidden: int = 128, layers: int = 1, outputs: int = 1, dropout: float = 0.0):
        check_positive(features=features, hidden=hidden, layers=layers, outputs=outputs)
        check_dropout(dropout)
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, num_layers=layers, batch_first=True)
        self.drop = nn.Dropout(dropout) if dropout else None
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Maps records to logits.

        Args:
            x: Measurements, ``[B, T, features]``; values after a record's end have no effect, not even NaN.
            lengths: Steps of each record, ``[B]``; all T when None.

        Returns:
            Logits, ``[B, outputs]``.
        """
        if lengths is None:
            lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        lengths = match_rows(lengths, x.shape[0])
        padding = ~valid_steps(lengths, x.shape[1])
        outputs, _ = self.lstm(x.masked_fill(padding.unsqueeze(2), 0))  # [B, T, hidden]
        last = last_step(outputs, match_rows(lengths, outputs.shape[0]))
        return self.output(last if self.drop is None else self.drop(last))
