"""Looking inside trained networks: phases of a layer, curvature, pruning, compression, attacks, and bounds."""

from leanbayes.analysis.alpha import log_alpha
from leanbayes.analysis.attack import AttackCurve, attack_curve, iterative_fast_sign
from leanbayes.analysis.batchnorm import refresh_batchnorm
from leanbayes.analysis.compression import (
    CompressedLayer,
    CompressionReport,
    compress,
    compress_report,
    truncate_std,
)
from leanbayes.analysis.hessian import curvature
from leanbayes.analysis.mmd import MMDBound, mmd_bound
from leanbayes.analysis.monitor import PhaseMonitor
from leanbayes.analysis.phase import LayerPhases, PhaseReport, Phases, phases
from leanbayes.analysis.pruning import (
    PrunedLayer,
    PrunePoint,
    PruneReport,
    PruningCurve,
    prune,
    prune_report,
    pruning_curve,
)
from leanbayes.analysis.score import Score
from leanbayes.analysis.snr import GradientSNR, LayerSNR, SNRMonitor, gradient_snr
from leanbayes.analysis.spectrum import LayerSpectrum, Spectrum, StdSpectrum, std_spectrum
from leanbayes.analysis.stacking import Stacking, stack_mixing, stacking_weights
from leanbayes.analysis.temperature import fit_temperature

__all__ = [
    "AttackCurve",
    "CompressedLayer",
    "CompressionReport",
    "GradientSNR",
    "LayerPhases",
    "LayerSNR",
    "LayerSpectrum",
    "MMDBound",
    "PhaseMonitor",
    "PhaseReport",
    "Phases",
    "PrunePoint",
    "PruneReport",
    "PrunedLayer",
    "PruningCurve",
    "SNRMonitor",
    "Score",
    "Spectrum",
    "Stacking",
    "StdSpectrum",
    "attack_curve",
    "compress",
    "compress_report",
    "curvature",
    "fit_temperature",
    "gradient_snr",
    "iterative_fast_sign",
    "log_alpha",
    "mmd_bound",
    "phases",
    "prune",
    "prune_report",
    "pruning_curve",
    "refresh_batchnorm",
    "stack_mixing",
    "stacking_weights",
    "std_spectrum",
    "truncate_std",
]
