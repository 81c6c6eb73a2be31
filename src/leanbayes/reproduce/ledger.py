"""The ledger: every figure and table of the four papers, what we measure beyond them, and how far each of them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanbayes.reproduce.pieces import count_pieces
from leanbayes.reproduce.recipe import broken, recipes
from leanbayes.reproduce.result import LISTED, on_generated_data, read_result

SYSTEMS = {
    "vn": "Variance Networks",
    "emp": "Ensemble Model Patching",
    "r1": "Rank-1 BNNs",
    "kt": "k-tied Normal",
}

LEDGER = {
    "vn-toy": "four classes in the plane through a bottleneck of two variance neurons",
    "vn-kl": "KL divergence against log alpha for three priors",
    "vn-mnist": "LeNet-5 on MNIST, noise rate per layer: which layer becomes a variance layer",
    "vn-cifar10": "VGG-like network on CIFAR-10: the move from means to variances",
    "vn-cifar100": "the same on the 20 coarse classes of CIFAR-100",
    "vn-params": "five parameterisations of one layer, by ELBO",
    "vn-priors": "log-uniform, Student-t and ARD prior lead to the same variance layers",
    "vn-samples": "accuracy of single draws against that of their average",
    "vn-prune": "pruning a variance layer by standard deviation",
    "vn-kappa": "the curvature criterion for weights that rely on their variance",
    "vn-rl": "exploration by policy gradient on CartPole and Acrobot",
    "vn-attack": "resistance to an iterative targeted fast-sign attack",
    "vn-tanh": "antisymmetric networks: tanh without biases",
    "vn-noise": "Gaussian, Bernoulli and uniform variance layers",
    "vn-activations": "densities of a variance layer's outputs by class",
    "vn-mmd": "distance of a trained layer's posterior from its zero-mean approximation, with its bound",
    "emp-params": "parameter counts of patched networks",
    "emp-family": "dropout, DropConnect and ensembles as members of one mixture family",
    "emp-prior": "functions drawn from dropout and from patched weights",
    "emp-uci": "ten regression tables, twenty splits each",
    "emp-cifar100": "PyramidNet on CIFAR-100: accuracy and calibration",
    "emp-samples": "calibration against the number of samples",
    "emp-imagenet": "ResNet-18 on ImageNet",
    "emp-imagenet-c": "mean corruption error on ImageNet-C",
    "emp-theorem": "the divergence of patches in closed form, and gradients by one draw",
    "r1-cifar10": "WRN-28-10 on CIFAR-10: eight methods by likelihood, accuracy and calibration",
    "r1-cifar100": "the same on CIFAR-100",
    "r1-shift": "CIFAR under corruptions, by intensity",
    "r1-imagenet": "ResNet-50 on ImageNet",
    "r1-ehr": "LSTM on hospital records: mortality",
    "r1-priors": "priors that rank-1 factors induce on the weights",
    "r1-which": "factors on the input, on the output, or on both",
    "r1-size": "number of mixture components",
    "r1-likelihood": "log of the mixture against average of the log-likelihood",
    "r1-diversity": "disagreement of components against accuracy",
    "r1-theorem": "variance of the score under rank-1 and under full weight noise, as the noise goes to zero",
    "kt-params": "parameter counts of k-tied networks",
    "kt-spectrum": "singular values of trained standard deviations and means",
    "kt-heatmap": "standard deviations beside their rank-2 approximation",
    "kt-posthoc": "low-rank standard deviations after mean-field training",
    "kt-train": "training with k-tied standard deviations",
    "kt-snr": "signal-to-noise ratio of gradients early in training",
    "kt-convergence": "negative ELBO against training steps",
    "kt-steptime": "time of a training step",
    "kt-heprior": "the low rank remains under a He-scaled prior",
    "kt-anneal": "standard deviations during and after KL annealing",
    "kt-matrix-normal": "rank 1 is the matrix normal with diagonal factors, rank 2 is not",
}

BEYOND_TITLE = "Beyond the papers"
# What no paper shows; ids begin with the system that they are about, or with "board".
BEYOND = {
    "emp-finetune": "a trained network, patched and fine-tuned in a tenth of its training time",
    "emp-ablation": "patched norms without the output, and with a component of zeros",
    "r1-beyond": "rank-1 networks with settings chosen on held-out images, against the ensemble of four",
    "board-tables": "the default estimators against the alternatives, on tables",
    "board-networks": "every method of `leanbayes compare` on images and text, and last-layer Laplace",
}


def ids_of(prefix: str) -> list[str]:
    """The ids in the ledger of one paper, by its prefix in `SYSTEMS`."""
    return [id for id in LEDGER if id.split("-")[0] == prefix]


def status(results: Path) -> list[dict[str, Any]]:
    """The status of every entry of the ledger, in its order, and then of what goes beyond the papers.

    Args:
        results: Folder of the result files.

    Returns:
        One mapping each: ``id``, ``title``, ``status`` ("holds", "falls short", "not judged" after a smoke run, "ready"
        where there is a recipe and no result, "planned", "broken", or "unusable" where the result file cannot be used)
        and, where there is a result, its ``preset``, ``date`` and ``gap``; ``gap`` also says what is broken or
        unusable. ``generated`` is True where no figure is comparable, the data being generated; ``beyond`` where it is
        of no paper. ``pieces`` counts, by preset, the finished pieces of work of a result that is not complete.
    """
    ready, failed = recipes(), broken()
    entries = []
    for id, title in (LEDGER | BEYOND).items():
        entry: dict[str, Any] = {"id": id, "title": title} | ({"beyond": True} if id in BEYOND else {})
        path = results / f"{id}.json"
        result = read_result(path)
        if result is not None:
            entry |= {"status": result["verdict"], **{name: result[name] for name in ("preset", "date", "gap")}}
            if on_generated_data(result):
                entry["generated"] = True
        elif path.exists():
            fields = ", ".join(LISTED)
            gap = f"{path} is no result, which is JSON with {fields}; delete it, or run {id} again, which replaces it"
            entry |= {"status": "unusable", "gap": gap}
        elif id in failed:
            entry |= {"status": "broken", "gap": f"{type(failed[id]).__name__}: {failed[id]}"}
        else:
            entry["status"] = "ready" if id in ready else "planned"
        pieces = count_pieces(results, id)
        entries.append(entry | ({"pieces": pieces} if pieces else {}))
    return entries
