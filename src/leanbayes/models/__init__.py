"""Plain networks, those of the reproduced systems among them, each built from a name and JSON options.

Nothing here is Bayesian: a model becomes so through ``leanbayes.bayesianize``. :func:`create` writes what it was asked
for on the model, so that a saved model can be built again without pickle.
"""

from leanbayes.models._registry import create, names
from leanbayes.models.event_lstm import EventLSTM
from leanbayes.models.ktied_cnn import KTiedCNN
from leanbayes.models.ktied_resnet import KTiedResNet
from leanbayes.models.lenet import LeNet5
from leanbayes.models.mlp import MLP
from leanbayes.models.pyramidnet import PyramidNet
from leanbayes.models.quantile_bins import QuantileBins
from leanbayes.models.record_lstm import RecordLSTM
from leanbayes.models.resnet import ResNet, resnet18, resnet50
from leanbayes.models.tabular_mlp import TabularMLP
from leanbayes.models.text_lstm import TextLSTM
from leanbayes.models.vgg import VGGLike
from leanbayes.models.wide_resnet import WideResNet

__all__ = [
    "MLP",
    "EventLSTM",
    "KTiedCNN",
    "KTiedResNet",
    "LeNet5",
    "PyramidNet",
    "QuantileBins",
    "RecordLSTM",
    "ResNet",
    "TabularMLP",
    "TextLSTM",
    "VGGLike",
    "WideResNet",
    "create",
    "names",
    "resnet18",
    "resnet50",
]
