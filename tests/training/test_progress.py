"""The progress bar: on a terminal or where asked for, and nowhere else."""

import io

from rich.console import Console

from leanbayes.training.progress import ProgressBar


def run(show, terminal):
    text = io.StringIO()
    bar = ProgressBar(
        2, 10, show=show, console=Console(file=text, force_terminal=terminal, width=80, color_system=None)
    )
    for step in range(1, 21):
        bar.step(step)
    bar.show(2, {"loss": 0.25, "valid_nll": 0.5, "lr": 1.0})
    bar.close()
    bar.close()
    return text.getvalue()


def test_on_a_terminal():
    text = run(None, True)
    for part in ("epoch 2/2", "20/20", "0:00:00", "loss 0.25 valid_nll 0.5"):
        assert part in text


def test_not_elsewhere_unless_asked_for():
    assert run(None, False) == ""
    assert run(False, True) == ""
    assert "20/20" in run(True, False)
