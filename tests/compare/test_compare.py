"""compare: the result file, resuming, failures, and settings that are the same for all methods."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from leanbayes import kl
from leanbayes.compare import PRESETS, Budget, Preset, compare, load_checkpoint, preset, save_checkpoint
from leanbayes.compare.measure import measure, predict_all
from leanbayes.compare.networks import build_network, default_network
from leanbayes.compare.presets import before_output
from leanbayes.compare.shifts import make_evaluation
from leanbayes.compare.train import choose_augmentation, make_model
from leanbayes.data import Schema, load
from leanbayes.data._normalise import Affine
from leanbayes.models import QuantileBins
from leanbayes.objectives import Categorical, Gaussian
from leanbayes.training import OutputError

KEYS = {
    "id", "data", "task", "command", "device", "date", "versions", "seeds", "samples", "classes", "metrics", "methods",
}  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A classification and a regression in one folder."""
    folder = tmp_path_factory.mktemp("tables")
    random = np.random.RandomState(0)
    x = random.randn(80, 3)
    kinds = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    values = 100 + 30 * x[:, 0] + random.randn(80)
    for name, target in (("kinds", kinds), ("values", values)):
        rows = [",".join(map(str, [*row, y])) for row, y in zip(x, target)]
        (folder / f"{name}.csv").write_text("a,b,c,target\n" + "\n".join(rows) + "\n")
    return folder


def run(data, out, methods=("plain", "rank1"), **options):
    settings = {"config": 1, "hidden": [8], "samples": 4, "progress": False} | options
    return compare(data, methods, out=out, **settings)


def test_the_result_has_the_schema(tables, tmp_path):
    result = run(tables / "kinds.csv", tmp_path, seeds=(0, 1), command="leanbayes compare kinds.csv")
    assert set(result) >= KEYS
    assert result["task"] == "classification" and result["classes"] == ["no", "yes"]
    assert json.loads((tmp_path / "compare.json").read_text()) == json.loads(json.dumps(result))
    entry = result["methods"][1]
    assert entry["name"] == "rank1" and entry["status"] == "done" and entry["error"] is None
    assert entry["overhead"] == entry["parameters"] / entry["plain_parameters"] > 1
    for values in (entry["train_seconds"], entry["predict_ms_per_example"], *entry["metrics"].values()):
        assert len(values) == 2
    assert set(entry["metrics"]) == set(result["metrics"]) == {"accuracy", "nll", "ece", "brier"}
    assert set(entry["corrupted"]) == set("12345")
    assert len(entry["ood"]["auroc"]) == 2
    assert sum(entry["reliability"]["count"]) == sum(entry["entropy"]["in"]) == result["settings"]["examples"][2]
    assert {"epoch", "loss", "nll", "kl", "valid_nll"} <= set(entry["history"][0])
    assert list(result["examples"].values()) == [51, 13, 16, 16, 16]  # a fifth of 64 rows is held out to stop on
    assert {record["metric"] for record in result["paired"]} == set(result["guess"]) == {"accuracy", "nll", "brier"}
    leads = {(record["method"], record["metric"]): record for record in result["against_guess"]}
    assert set(leads) == {(name, metric) for name in ("plain", "rank1") for metric in ("accuracy", "nll", "brier")}
    lead = np.mean(entry["metrics"]["nll"]) - result["guess"]["nll"]
    assert leads["rank1", "nll"]["difference"] == pytest.approx(lead, abs=1e-6)
    gap = np.mean(result["methods"][0]["metrics"]["nll"]) - np.mean(entry["metrics"]["nll"])
    (nll,) = [record for record in result["paired"] if record["metric"] == "nll"]
    assert nll["first"] == "plain" and nll["difference"] == pytest.approx(gap, abs=1e-6)


def test_a_regression_is_measured_in_its_units(tables, tmp_path):
    result = run(tables / "values.csv", tmp_path, methods=["deep-ensemble"], config=30)
    metrics = {name: values[0] for name, values in result["methods"][0]["metrics"].items()}
    assert set(metrics) == {"rmse", "lpd", "coverage", "width"}
    # Targets have a standard deviation of 30; in the network's units that would be 1.
    assert 1 < metrics["rmse"] < 60 and metrics["width"] > 4
    assert metrics["rmse"] < result["guess"]["rmse"] < 60
    entry = result["methods"][0]
    assert entry["calibration"]["coverage"][-1] == pytest.approx(metrics["coverage"])
    assert 0 < min(entry["intervals"]["target"]) < 100 < max(entry["intervals"]["target"]) < 250


def test_every_preset_trains_on_images(tmp_path):
    result = run("digits", tmp_path, methods=None, samples=2)
    assert [entry["name"] for entry in result["methods"]] == list(PRESETS)
    assert [entry["error"] for entry in result["methods"]] == [None] * 12
    for entry in result["methods"]:
        assert all(np.isfinite(entry["metrics"]["nll"]))
        images = entry["examples"]["certain"]
        assert np.shape(images[0]["image"]) == (1, 8, 8) and images[0]["label"] in result["classes"]


def test_resume_keeps_what_is_done(tables, tmp_path):
    first = run(tables / "kinds.csv", tmp_path, methods=["plain"])
    started = []
    again = run(tables / "kinds.csv", tmp_path, resume=True, watch=lambda event, entry: started.append(entry["name"]))
    assert again["methods"][0]["train_seconds"] == first["methods"][0]["train_seconds"]
    assert [entry["name"] for entry in again["methods"]] == ["plain", "rank1"]
    kept = run(tables / "kinds.csv", tmp_path, methods=["plain"], resume=True)
    assert [entry["name"] for entry in kept["methods"]] == ["plain", "rank1"]


def test_a_changed_preset_is_trained_again(tables, tmp_path):
    run(tables / "kinds.csv", tmp_path, methods=["rank1"])
    changed = replace(preset("rank1"), kl_weight=0.5)
    (tmp_path / "rank1" / "seed0" / "result.json").read_text()
    result = run(tables / "kinds.csv", tmp_path, methods=[changed], resume=True)
    assert result["methods"][0]["kl_weight"] == 0.5


def test_a_folder_with_another_comparison_is_refused(tables, tmp_path):
    run(tables / "kinds.csv", tmp_path, methods=["plain"])
    with pytest.raises(OutputError, match="already holds a comparison"):
        run(tables / "kinds.csv", tmp_path, methods=["plain"])
    with pytest.raises(OutputError, match="has a different value for samples"):
        run(tables / "kinds.csv", tmp_path, methods=["plain"], samples=5, resume=True)


def test_a_method_that_fails_does_not_stop_the_others(tables, tmp_path):
    broken = Preset("broken", "Broken", preset("emp").method, where=lambda model: lambda name, module: False)
    result = run(tables / "kinds.csv", tmp_path, methods=[broken, "plain"])
    assert [entry["status"] for entry in result["methods"]] == ["failed", "done"]
    assert result["methods"][0]["error"]


def test_interrupting_leaves_the_methods_that_are_done(tables, tmp_path):
    def interrupt(event, entry):
        if event == "start" and entry["name"] == "rank1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tables / "kinds.csv", tmp_path, watch=interrupt)
    names = [entry["name"] for entry in json.loads((tmp_path / "compare.json").read_text())["methods"]]
    assert names == ["plain"]
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_same_seed_gives_the_same_figures(tables, tmp_path):
    results = [run(tables / "kinds.csv", tmp_path / name) for name in "ab"]
    first, second = ([entry["metrics"] for entry in result["methods"]] for result in results)
    assert first == second


@pytest.mark.parametrize("name", ["values", "kinds"])
def test_a_saved_model_predicts_the_same(tables, tmp_path, name):
    result = run(tables / f"{name}.csv", tmp_path, methods=["rank1"])
    saved = load_checkpoint(tmp_path / "rank1" / "seed0")
    dataset = load(tables / f"{name}.csv")
    x, y = dataset.ready("test")
    scale = dataset.normalisation.targets
    metrics = measure(predict_all(saved.model, x, 4, saved.likelihood), y, scale)
    for key, value in result["methods"][0]["metrics"].items():
        assert metrics[key] == pytest.approx(value[0], rel=1e-4)


def test_a_damaged_or_missing_checkpoint_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no trained model"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, build_network(Schema("regression", "table", (2,))), Gaussian(2.0), _schema())
    assert load_checkpoint(tmp_path).likelihood.fixed_log_precision.exp() == pytest.approx(2.0)
    save_checkpoint(tmp_path, build_network(_schema()), Gaussian("learned", init_precision=3.0), _schema())
    assert load_checkpoint(tmp_path).likelihood.fixed_log_precision.exp() == pytest.approx(3.0)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(tmp_path)


def _schema() -> Schema:
    return Schema("regression", "table", (2,))


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (Schema("regression", "table", (5,)), "tabular_mlp"),
        (Schema("classification", "image", (1, 8, 8), ("a", "b")), "mlp"),
        (Schema("classification", "image", (3, 32, 32), ("a", "b")), "lenet5"),
        (Schema("classification", "image", (3, 40, 32), ("a", "b")), "resnet18"),
        (Schema("binary", "series", (10, 4), ("a", "b")), "record_lstm"),
        (Schema("binary", "text", (7,), ("a", "b"), vocabulary=("x", "y")), "text_lstm"),
    ],
)
def test_the_default_network_takes_the_data(schema, name):
    assert default_network(schema) == name
    ids = schema.inputs == "text"
    x = torch.randint(4, 6, (2, *schema.shape)) if ids else torch.randn(2, *schema.shape)
    assert build_network(schema).eval()(x).shape == (2, schema.classes or 1)


def test_another_network_and_widths():
    schema = Schema("classification", "image", (3, 32, 32), ("a", "b", "c"))
    assert build_network(schema, hidden=[4]).eval()(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert build_network(schema, "ktied_cnn")(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(ValueError, match="there is no model named 'lenet6'"):
        build_network(schema, "lenet6")
    with pytest.raises(ValueError, match="'text_lstm' does not take inputs of the kind 'image' and shape"):
        build_network(schema, "text_lstm")
    with pytest.raises(ValueError, match="hidden sets the widths"):
        build_network(schema, "lenet5", hidden=[4])


def test_tables_get_an_ensemble_of_sixteen(tables, tmp_path):
    result = run(tables / "values.csv", tmp_path, ["batch-ensemble"])
    assert result["methods"][0]["title"] == "BatchEnsemble (16)"
    assert preset("batch-ensemble").suited("image") is preset("batch-ensemble")
    own = replace(preset("batch-ensemble"), kl_weight=0.5)
    assert own.suited("table") is own


def test_small_tables_and_those_of_many_columns_have_fewer_bins():
    counts = {(5, None): 16, (300, None): 3, (5, 10_000): 16, (5, 240): 6, (5, 10): 1, (5000, None): 1}
    for (features, rows), bins in counts.items():
        network = build_network(Schema("regression", "table", (features,)), hidden=[4], rows=rows)
        assert network.bins.edges.shape == (features, bins + 1)
        assert network.dense1.weight.shape == (4, features * (bins + 1))


def test_bins_are_the_quantiles_of_the_training_rows(tables):
    dataset = load(tables / "values.csv", target="target")
    rows = dataset.ready("train")[0]
    for method in ("plain", "deep-ensemble"):
        model = make_model(dataset, preset(method), 0, hidden=[4])
        bins = next(module for module in model.modules() if isinstance(module, QuantileBins))
        for edges in bins.edges.reshape(-1, *bins.edges.shape[-2:]):  # of each member
            torch.testing.assert_close(edges.T, rows.quantile(torch.linspace(0, 1, edges.shape[1]), dim=0))


def test_variance_layers_stand_before_the_output():
    model = build_network(Schema("classification", "image", (1, 8, 8), ("a", "b")))
    converted = preset("variance-layer").convert(model)
    assert type(converted.dense2) is not nn.Linear and type(converted.dense1) is type(converted.output) is nn.Linear
    assert before_output(nn.Sequential(nn.Linear(2, 2))) is None


def test_budgets():
    assert Budget.of("fast", 1294).epochs == 40 == Budget.of("40", 10).epochs
    assert Budget.of("fast", 10).epochs == 200 and Budget.of("fast", 10**7).epochs == 1
    for wrong in ("slow", "0", 0, "-3"):
        with pytest.raises(ValueError, match="budget"):
            Budget.of(wrong, 100)
    config = Budget.of(10, 100).config(preset("rank1"), 3, "cpu")
    assert config.optimizer == "adamw" and config.lr == 2e-3 and config.warmup == 0
    assert config.seed == 3 and config.epochs == 10 and config.kl_weight == preset("rank1").kl_weight


COLOUR, GREY, TINY, PHOTOS = (
    Schema("classification", "image", shape, tuple("abc"))
    for shape in ((3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 224, 224))
)


def test_a_normal_budget_trains_residual_networks_on_small_images():
    chosen = Budget.of("normal", 45_000, schema=COLOUR)
    assert chosen == Budget(45, 256, lr=0.1, weight_decay=5e-4, patience=None, thorough=True, decay_kl=22.5)
    assert Budget.of("normal", 45_000, 64, COLOUR).lr == pytest.approx(0.025)
    assert [default_network(schema, thorough=True) for schema in (COLOUR, GREY, TINY, PHOTOS)] == [
        "resnet18", "wide_resnet", "mlp", "resnet18",
    ]  # fmt: skip
    sizes = [sum(p.numel() for p in build_network(s, thorough=True).parameters()) for s in (COLOUR, GREY)]
    # The known counts, with three classes instead of ten, and one channel instead of three.
    assert sizes == [11_173_962 - 7 * 513, 2_748_890 - 7 * 257 - 2 * 9 * 16]
    asked = build_network(GREY, "lenet5", thorough=True), build_network(GREY, hidden=[4], thorough=True)
    assert [network.leanbayes_config["name"] for network in asked] == ["lenet5", "mlp"]


@pytest.mark.parametrize(
    ("value", "schema"), [("fast", COLOUR), (3, COLOUR), ("normal", TINY), ("normal", PHOTOS), ("normal", _schema())]
)
def test_other_budgets_and_data_are_not_trained_thoroughly(value, schema):
    assert Budget.of(value, 45_000, schema=schema) == Budget.of(value, 45_000)
    assert not Budget.of(value, 45_000, schema=schema).thorough


def test_sgd_trains_weights_and_adamw_noise_rates():
    budget = Budget.of("normal", 45_000, schema=COLOUR)
    sgd, adamw = (budget.config(preset(name), 0, "cpu") for name in ("rank1", "variational-dropout"))
    assert (sgd.optimizer, sgd.nesterov, sgd.lr) == ("sgd", True, 0.1)
    assert (adamw.optimizer, adamw.nesterov, adamw.lr) == ("adamw", False, 2e-3)
    for config in (sgd, adamw):
        assert (config.schedule, config.warmup, config.precision) == ("cosine", 2.25, "auto")  # bfloat16 on a GPU
        assert config.valid_every == 1 and config.patience is None and config.restore_best


def test_models_of_a_seed_are_the_same_and_of_another_differ():
    dataset = load("digits")
    one, same, other = (make_model(dataset, preset("rank1"), seed) for seed in (0, 0, 1))
    weights = [model.state_dict()["dense1.weight.posterior.weight"] for model in (one, same, other)]
    assert weights[0].equal(weights[1]) and not weights[0].equal(weights[2])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Colour images of two classes, told apart by their brightness."""
    random = np.random.RandomState(0)
    labels = np.arange(60) % 2
    images = random.randint(0, 128, (60, 3, 16, 16)) + 100 * labels[:, None, None, None]
    path = tmp_path_factory.mktemp("pictures") / "pictures.npz"
    np.savez(path, x=images.astype(np.uint8), y=labels)
    return path


def test_colour_images_are_augmented_and_others_are_not_unless_asked(pictures, tables):
    colour, grey, table = load(pictures), load("digits"), load(tables / "kinds.csv")
    standard = "Chain(PadCrop(padding=2, mode='constant', fill=0), Flip(p=0.5))"
    assert repr(choose_augmentation(colour)) == repr(choose_augmentation(colour, True)) == standard
    assert repr(choose_augmentation(grey, True)) == standard.replace("2", "1")
    assert [choose_augmentation(*given) for given in ((colour, False), (grey,), (grey, False), (table,))] == [None] * 4
    with pytest.raises(ValueError, match="augment=True crops and flips images, but kinds.csv has none"):
        choose_augmentation(table, True)


def test_augmentation_is_stated_and_changes_training_alone(pictures, tmp_path):
    results = [run(pictures, tmp_path / str(wanted), ["plain"], augment=wanted) for wanted in (None, False)]
    assert [result["settings"]["augment"] for result in results] == [
        "Chain(PadCrop(padding=2, mode='constant', fill=0), Flip(p=0.5))", None,
    ]  # fmt: skip
    losses = [result["methods"][0]["history"][0]["loss"] for result in results]
    assert losses[0] != losses[1]
    with pytest.raises(OutputError, match="has a different value for augment"):
        run(pictures, tmp_path / "None", ["plain"], augment=False, resume=True)


def test_mc_dropout_decays_weights_as_others_do():
    budget = Budget.of("normal", 45_000, schema=COLOUR)
    net = preset("mc-dropout").convert(nn.Linear(3, 2, bias=False))
    weight = budget.config(preset("mc-dropout"), 0, "cpu").kl_weight
    (gradient,) = torch.autograd.grad(weight / 45_000 * kl(net), list(net.parameters()))
    (value,) = net.parameters()
    torch.testing.assert_close(gradient, budget.weight_decay / 0.95 * value)  # kept inputs are larger by that
    assert budget.config(preset("rank1"), 0, "cpu").kl_weight == preset("rank1").kl_weight
    assert Budget.of("fast", 45_000, schema=COLOUR).kl_weight(preset("mc-dropout")) == 1


def test_sgd_and_adamw_share_a_thorough_budget(pictures, tmp_path):
    budget = Budget(2, 16, lr=0.02, weight_decay=5e-4, patience=None, thorough=True)
    result = run(pictures, tmp_path, ["plain", "k-tied"], config=budget, network="lenet5", hidden=None)
    assert [entry["error"] for entry in result["methods"]] == [None, None]
    assert result["settings"]["budget"]["thorough"] and result["settings"]["network"]["name"] == "lenet5"
    assert all(np.isfinite(entry["metrics"]["nll"][0]) for entry in result["methods"])


def test_the_shifted_data(tables):
    images = make_evaluation(load("digits"), shifted=50)
    assert all(x.shape == (50, 1, 8, 8) and len(y) == 50 for x, y in images.corrupted.values())
    whole = load("digits")
    # As many images, not a few of them again; also where there are fewer than types of corruption.
    assert images.corrupted[1][1].tolist() == whole.test.spaced(50).y.tolist()
    assert make_evaluation(whole, shifted=3).corrupted[5][0].shape == (3, 1, 8, 8)
    assert images.ood is not None and images.ood.shape == (50, 1, 8, 8)
    assert images.images is not None and 0 <= images.images.min() and images.images.max() <= 1
    table = make_evaluation(load(tables / "kinds.csv"), ood=str(tables / "values.csv"))
    far = [float((x - table.x[: len(x)]).std()) for x, _ in table.corrupted.values()]
    assert far == sorted(far) and table.ood_name == "values.csv"
    assert make_evaluation(load(tables / "kinds.csv"), ood=load(tables / "values.csv")).ood.equal(table.ood)
    with pytest.raises(ValueError, match="have shape"):
        make_evaluation(load("digits"), ood=str(tables / "values.csv"))


def test_the_measures_are_those_of_the_metrics():
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 4.0]]])
    from leanbayes import Prediction

    probs = outputs.softmax(-1).mean(0)
    found = measure(Prediction(outputs, Categorical()), torch.tensor([0, 0]))
    assert found["nll"] == pytest.approx(float(-probs[:, 0].log().mean()), rel=1e-5)
    assert found["accuracy"] == 0.5
    values = measure(Prediction(torch.zeros(1, 2, 1), Gaussian(1.0)), torch.tensor([0.0, 1.0]), Affine(std=(10.0,)))
    assert values["rmse"] == pytest.approx(10 * 0.5**0.5)
    assert values["width"] == pytest.approx(10 * 2 * 1.959964, rel=1e-4)
    assert values["lpd"] == pytest.approx(-0.918939 - 0.25 - np.log(10), rel=1e-4)


def test_unknown_names():
    with pytest.raises(ValueError, match="there is no method 'rank2'"):
        preset("rank2")
    with pytest.raises(ValueError, match="at least one seed"):
        compare("digits", seeds=(), out="unused")
