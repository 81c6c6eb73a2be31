"""The sampling state of a thread, the frames of passes, the folding of samples, and second runs."""

from leanbayes._sampling.folding import fold, split
from leanbayes._sampling.frames import Frame, Identity
from leanbayes._sampling.passes import FrameCloser, FrameOpener, layer_state, one_pass, own_frame, rows_seen
from leanbayes._sampling.reruns import (
    check_component_known,
    check_rerun,
    checkpoint_contexts,
    may_run_again,
    note_dependence,
)
from leanbayes._sampling.spent import tell_when_spent
from leanbayes._sampling.state import (
    Assigned,
    Sampling,
    Where,
    current_frame,
    current_sampling,
    sampling,
    using,
)
from leanbayes._sampling.streams import SeededRandom, Stream, check_seed, sample_seed

__all__ = [
    "Assigned",
    "Frame",
    "FrameCloser",
    "FrameOpener",
    "Identity",
    "Sampling",
    "SeededRandom",
    "Stream",
    "Where",
    "check_component_known",
    "check_rerun",
    "check_seed",
    "checkpoint_contexts",
    "current_frame",
    "current_sampling",
    "fold",
    "layer_state",
    "may_run_again",
    "note_dependence",
    "one_pass",
    "own_frame",
    "rows_seen",
    "sample_seed",
    "sampling",
    "split",
    "tell_when_spent",
    "using",
]
