"""Train one method on a data set and save the model.

For example ``leanbayes fit digits --method rank1 --out runs/digits``.
"""

from __future__ import annotations

import argparse

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import UsageError
from leanbayes.cli._tables import console, counted, metric_table, print_json

# On tables, that of the estimators, which leads the board among the methods of few parameters.
_DEFAULT, _DEFAULTS = "rank1", {"table": "batch-ensemble"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    shared.add_data(parser)
    shared.add_network(parser)
    parser.add_argument(
        "--method",
        type=shared.method,
        metavar="METHOD",
        help=f"one of {', '.join(shared.PRESET_NAMES)}, or your own as module:attribute (default: batch-ensemble for "
        "tables, rank1 for everything else)",
    )
    parser.add_argument("--seeds", type=shared.seed, default=0, metavar="SEED", help="seed of the network (default: 0)")
    parser.add_argument("--out", help="output folder (default: runs/fit-DATA-TIME)")
    shared.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    out = shared.output_folder(options, "fit")
    if (out / "compare.json").exists():
        raise UsageError(f"{out} holds a comparison; choose another folder for a model")
    screen = console(options.json)
    device = shared.device_of(options)
    method = None if options.method is None else shared.find_preset(options.method)
    dataset = shared.load_data(options)
    from leanbayes.compare import Seen, preset, save_checkpoint, train
    from leanbayes.compare.measure import measure, predict_all
    from leanbayes.compare.threads import suitable_threads
    from leanbayes.compare.train import choose_augmentation, make_model

    shared.describe(dataset, screen)
    method = (method or preset(_DEFAULTS.get(dataset.inputs, _DEFAULT))).suited(dataset.inputs)
    budget = shared.budget(options, dataset)
    config = budget.config(method, options.seeds, device)
    varying = options.heteroscedastic
    model = make_model(dataset, method, options.seeds, options.model, options.hidden, varying, budget.thorough)
    augment = choose_augmentation(dataset, options.augment)
    with suitable_threads(model):
        likelihood, history = train(
            model, dataset, config, out=out, resume=options.resume, augment=augment, heteroscedastic=varying
        )
    save_checkpoint(
        out, model, likelihood, dataset.schema, data=dataset.name, method=method.name, seed=options.seeds,
        samples=options.samples, augment=None if augment is None else repr(augment), seen=Seen.of(dataset),
    )  # fmt: skip
    metrics = {}
    if len(dataset.test):
        x, y = dataset.ready("test")
        prediction = predict_all(model, x, options.samples, likelihood)
        metrics = measure(prediction, y, dataset.normalisation.targets)
        screen.print(metric_table(f"{method.title}, {counted(len(y), 'test example')}", metrics))
    screen.print(f"model: {out}", markup=False, highlight=False, soft_wrap=True)
    if options.json:
        print_json({"model": str(out), "method": method.name, "metrics": metrics, "train_seconds": history.seconds})
    return 0
