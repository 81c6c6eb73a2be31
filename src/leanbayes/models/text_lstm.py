"""The IMDB text classifier of the k-tied Normal paper."""

import torch
from torch import Tensor, nn

from leanbayes.models._options import check_positive
from leanbayes.models._registry import register
from leanbayes.models._sequence import last_step, match_rows

PADDING = 0


@register("text_lstm")
class TextLSTM(nn.Module):
    """An embedding, an LSTM and a dense layer on its output at the last word; 2,692,225 parameters by default.

    That is 512 more than in Keras: torch's LSTM has two bias vectors. Only ``lstm`` and ``output`` are meant to be
    Bayesian; the embedding is deterministic. Kernels start from N(0, 2 / fan_in), the recurrent ones orthogonal gate by
    gate, the forget gate's bias at one, other biases at zero, the embedding uniform in +-0.05.

    Args:
        vocabulary: Word ids, of which 0 is padding.
        embedding: Size of a word's vector.
        hidden: Units of the LSTM.
        outputs: Units of the output; one is the logit of the positive class.

    Shape:
        Ids ``[B, T]`` to ``[B, outputs]``.

    Example:
        >>> import torch
        >>> model = TextLSTM(vocabulary=50, embedding=8, hidden=8)
        >>> model(torch.tensor([[4, 7, 1], [9, 0, 0]])).shape
        torch.Size([2, 1])
    """

    def __init__(self, vocabulary: int = 20_000, embedding: int = 128, hidden: int = 128, outputs: int = 1):
        check_positive(vocabulary=vocabulary, embedding=embedding, hidden=hidden, outputs=outputs)
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, outputs)
        self._init_parameters()

    def _init_parameters(self) -> None:
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        for name, parameter in (*self.lstm.named_parameters(), *self.output.named_parameters()):
            if name.startswith("weight"):
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            else:
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.embedding.weight[PADDING] = 0
            # Gates lie in the order input, forget, cell, output.
            self.lstm.get_parameter("bias_ih_l0").view(4, -1)[1] = 1
        # Larger recurrent kernels let some starts learn little once there is noise on them.
        for gate in self.lstm.get_parameter("weight_hh_l0").chunk(4):
            nn.init.orthogonal_(gate)

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Maps word ids to logits.

        Args:
            ids: Word ids, ``[B, T]``; padding after the last word has no effect.
            lengths: Words of each text, ``[B]``; up to the last id that is not padding when None.

        Returns:
            Logits, ``[B, outputs]``.
        """
        outputs, _ = self.lstm(self.embedding(ids))  # [B, T, hidden]
        if lengths is None:
            lengths = _lengths(ids)
        return self.output(last_step(outputs, match_rows(lengths, outputs.shape[0])))


def _lengths(ids: Tensor) -> Tensor:
    """Position after the last id that is not padding, ``[B]``, for ids ``[B, T]``."""
    positions = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return torch.where(ids == PADDING, 0, positions).amax(dim=1)
