"""Train on two CPU processes through Fabric: ``python two_processes.py FOLDER``; Fabric starts the second process."""

import sys
from pathlib import Path

import torch

import leanbayes as lb
from leanbayes.training import OutputError, fit
from tests.training.problems import config, data, network, weights

SETTINGS = {"devices": 2, "strategy": "ddp", "clip": 0.1, "batch_size": 32, "optimizer": "sgd"}


def main(folder):
    x, y = data(100)
    parts = {"train": (x, y), "valid": (x[:41], y[:41])}
    results = {}
    for accumulate in (1, 3):
        model = network(lb.MeanField())
        with lb.sampling(mean=True):
            settings = config(**SETTINGS, accumulate=accumulate)
            history = fit(model, parts, settings, out=folder / f"mean{accumulate}")
        results[f"mean{accumulate}"] = weights(model), history.records
    # With noise: a run in two parts is the run in one.
    whole, resumed = network(lb.MeanField()), network(lb.MeanField())
    fit(whole, parts, config(**SETTINGS, epochs=4), out=folder / "whole")
    fit(resumed, parts, config(**SETTINGS, epochs=2), out=folder / "parts")
    fit(resumed, parts, config(**SETTINGS, epochs=4), out=folder / "parts", resume=True)
    results["whole"], results["resumed"] = weights(whole), weights(resumed)
    # Compiled code draws from torch's generator.
    states = []
    settings = config(**SETTINGS, epochs=1, compile="eager")
    fit(network(lb.MeanField()), parts, settings, callbacks=[lambda event: states.append(torch.get_rng_state())])
    results["generator"] = states[0]
    # All processes learn what the first one found.
    (folder / "file").write_text("")
    try:
        fit(network(), parts, config(**SETTINGS), out=folder / "file")
    except OutputError as error:
        results["error"] = str(error)
    rank = torch.distributed.get_rank()
    torch.save(results, folder / f"results{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
