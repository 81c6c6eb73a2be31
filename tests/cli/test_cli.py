"""The command line end to end: files in, files out, exit codes, and one sentence for every error."""

import csv
import errno
import json
import os
import re

import numpy as np
import pytest

import leanbayes.training.files
from leanbayes._auto_samples import stage_counts
from leanbayes.cli import main
from leanbayes.cli._main import _COMMANDS
from leanbayes.cli._options import PRESET_NAMES
from leanbayes.compare import PRESETS
from leanbayes.data import generate
from tests.cli.commands import failure

SMALL = ["--budget", "1", "--hidden", "8", "--samples", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Files of one's own: two good ones and those that are wrong in some way."""
    folder = tmp_path_factory.mktemp("tables")
    random = np.random.RandomState(0)
    x = random.randn(80, 3)
    kinds = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    values = 100 + 30 * x[:, 0] + random.randn(80)
    texts = np.where(x[:, 2] > 0, "red", "blue")
    for name, columns in {
        "kinds": [*x.T, kinds],
        "values": [*x.T, values],
        "text": [x[:, 0], texts, x[:, 1], kinds],
    }.items():
        rows = [",".join(map(str, row)) for row in zip(*columns)]
        (folder / f"{name}.csv").write_text("a,b,c,target\n" + "\n".join(rows) + "\n")
    np.savez(folder / "labels.npz", x=x, y=np.arange(80) - 1)
    np.savez(folder / "images.npz", x=random.rand(5, 1, 8, 8).astype(np.float32))
    np.savez(folder / "wide.npz", x=random.rand(5, 1, 9, 9).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def models(tables):
    """Folders with a trained classifier and a trained regressor."""
    for name in ("kinds", "values"):
        assert main(["fit", str(tables / f"{name}.csv"), *SMALL, "--out", str(tables / f"model-{name}")]) == 0
    return tables


def test_compare_ends_with_a_table_and_a_report(tables, tmp_path, capsys):
    words = ["compare", str(tables / "kinds.csv"), *SMALL, "--method", "plain", "rank1", "--out", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Rank-1 Gaussian" in shown and "NLL" in shown
    assert "None yet: no method clearly beats the NLL of a constant guess" in shown.replace("\n", " ")
    assert str(tmp_path / "report.html") in shown.replace("\n", "")
    assert (tmp_path / "report.html").read_text().startswith("<!")
    stored = json.loads((tmp_path / "compare.json").read_text())
    assert stored["command"].startswith("leanbayes compare ") and len(stored["methods"]) == 2


def test_when_to_stop_is_said_on_the_command_line(tables, tmp_path, capsys):
    words = ["compare", str(tables / "values.csv"), *SMALL, "--method", "plain", "--refit", "--heteroscedastic"]
    assert main([*words, "--patience", "0", "--no-restore-best", "--out", str(tmp_path)]) == 0
    settings = json.loads((tmp_path / "compare.json").read_text())["settings"]
    budget = settings["budget"]
    assert (budget["patience"], budget["restore_best"], budget["refit"]) == (None, False, True)
    assert settings["heteroscedastic"] is True
    folder = tmp_path / "plain" / "seed0"
    assert not list(folder.rglob("*.pt"))
    assert json.loads((folder / "model.json").read_text())["noise_factor"] > 0
    capsys.readouterr()
    assert main(["evaluate", str(folder), str(tables / "values.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["lpd"] < 0
    wrong = ["fit", str(tables / "kinds.csv"), *SMALL, "--heteroscedastic", "--out", str(tmp_path / "wrong")]
    assert "heteroscedastic noise is for real targets" in failure(capsys, *wrong)


def test_compare_prints_json_that_parses(tables, tmp_path, capsys):
    words = ["compare", str(tables / "values.csv"), *SMALL, "--method", "emp", "--seeds", "0", "1", "--json"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["task"] == "regression" and len(result["methods"][0]["metrics"]["rmse"]) == 2
    assert "recommended" in result and result["verdict"].startswith("Only EMP (5) has results")


def test_compare_resumes(tables, tmp_path, capsys):
    words = ["compare", str(tables / "kinds.csv"), *SMALL, "--out", str(tmp_path), "--json", "--method"]
    assert main([*words, "plain"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert "already holds a comparison; pass --resume" in failure(capsys, *words, "plain")
    assert main([*words, "plain", "--method", "ecmp", "--resume"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["methods"][0] == first["methods"][0] and again["methods"][1]["name"] == "ecmp"


def test_a_failed_method_is_not_success(tables, tmp_path, capsys, monkeypatch):
    def fail(self, model):
        raise ValueError("this layer [x] has no such method")

    monkeypatch.setattr("leanbayes.compare.presets.Preset.convert", fail)
    words = ["compare", str(tables / "kinds.csv"), *SMALL, "--method", "rank1", "--out", str(tmp_path)]
    monkeypatch.setattr("leanbayes.compare.run.make_model", _plain_or_fail)
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.err == "leanbayes: error: 1 of 1 methods failed: rank1\n"
    assert "this layer [x]" in captured.out.replace("\n", " ")
    assert json.loads((tmp_path / "compare.json").read_text())["methods"][0]["status"] == "failed"


def _plain_or_fail(dataset, preset, seed, network, hidden, heteroscedastic, thorough):
    from leanbayes.compare.networks import build_network

    model = build_network(dataset.schema, network, hidden)
    return model if preset.method is None else preset.convert(model)


def test_names_of_the_methods_are_the_presets():
    assert tuple(PRESETS) == PRESET_NAMES


def test_evaluate(models, capsys):
    path = str(models / "kinds.csv")
    assert main(["evaluate", str(models / "model-kinds"), path, "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["examples"], found["left_out"]) == (16, 64) and 0 <= found["metrics"]["accuracy"] <= 1
    assert main(["evaluate", str(models / "model-values"), str(models / "values.csv")]) == 0
    assert "RMSE" in capsys.readouterr().out


def test_as_many_samples_as_it_takes(models, capsys):
    words = [str(models / "kinds.csv"), "--samples", "auto", "--device", "cpu", "--json"]
    assert main(["evaluate", str(models / "model-kinds"), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] in stage_counts(4) and 0 <= found["metrics"]["accuracy"] <= 1
    assert main(["predict", str(models / "model-kinds"), *words]) == 0
    assert len(json.loads(capsys.readouterr().out)["label"]) == 80


def test_evaluate_takes_the_split_of_the_training(tmp_path, capsys):
    generate.write("uci-concrete", tmp_path)
    words = ["uci-concrete", "--root", str(tmp_path), "--split", "1", "--json"]
    assert main(["fit", *words, *SMALL, "--out", str(tmp_path / "model")]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(tmp_path / "model"), *words, "--samples", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(trained["metrics"], rel=1e-4)


@pytest.mark.parametrize("ending", ["csv", "npz", "json"])
def test_predict_writes_files(models, tmp_path, capsys, ending):
    out = tmp_path / f"predictions.{ending}"
    words = ["predict", str(models / "model-kinds"), str(models / "kinds.csv"), "--out", str(out)]
    assert main(words) == 0
    if ending == "csv":
        rows = list(csv.DictReader(out.read_text().splitlines()))
        found = {name: [row[name] for row in rows] for name in rows[0]}
    else:
        found = dict(np.load(out)) if ending == "npz" else json.loads(out.read_text())
    assert set(found) == {"label", "confidence", "entropy", "mutual_information", "p_no", "p_yes"}
    total = np.array(found["p_no"], float) + np.array(found["p_yes"], float)
    assert len(total) == 80 and np.allclose(total, 1, atol=1e-4)
    assert set(found["label"]) <= {"yes", "no"}


def test_predict_gives_intervals_in_the_targets_units(models, capsys):
    assert main(["predict", str(models / "model-values"), str(models / "values.csv"), "--json"]) == 0
    found = {name: np.array(values) for name, values in json.loads(capsys.readouterr().out).items()}
    assert set(found) == {"mean", "std", "lower95", "upper95"}
    assert (found["lower95"] < found["mean"]).all() and (found["mean"] < found["upper95"]).all()
    assert 50 < found["mean"].mean() < 150 and found["std"].mean() > 5


def test_predict_on_the_screen_is_csv(models, capsys):
    assert main(["predict", str(models / "model-kinds"), str(models / "kinds.csv")]) == 0
    assert capsys.readouterr().out.startswith("label,confidence,entropy,mutual_information,p_no,p_yes\n")


def test_without_a_method_fit_takes_the_one_that_suits_the_data(models, tmp_path, capsys):
    assert json.loads((models / "model-kinds" / "model.json").read_text())["method"] == "batch-ensemble"
    assert main(["fit", "digits", *SMALL, "--limit", "40", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "rank1"


def test_images_from_an_npz_file(tables, tmp_path, capsys):
    assert main(["fit", "digits", *SMALL, "--method", "emp", "--out", str(tmp_path)]) == 0
    assert main(["predict", str(tmp_path), str(tables / "images.npz"), "--json"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path), "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 359
    text = failure(capsys, "predict", tmp_path, tables / "wide.npz")
    assert "(1, 9, 9)" in text and "(1, 8, 8)" in text


def test_a_folder_of_images(tmp_path, capsys):
    generate.write_image_folder(tmp_path / "photos", rows=(24, 12), size=(20, 16))
    photos, model = str(tmp_path / "photos"), str(tmp_path / "model")
    assert main(["fit", photos, "--size", "16", *SMALL, "--method", "plain", "--out", model]) == 0
    assert "PadCrop(padding=2" in json.loads((tmp_path / "model" / "model.json").read_text())["augment"]
    capsys.readouterr()
    assert main(["evaluate", model, photos, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 12
    assert main(["predict", model, f"{photos}/val", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == sorted(map(str, (tmp_path / "photos" / "val").rglob("*.png")))
    assert len(found["label"]) == 12


def test_fit_resumes(tables, tmp_path, capsys):
    words = ["fit", str(tables / "kinds.csv"), *SMALL, "--out", str(tmp_path)]
    assert main(words) == 0
    capsys.readouterr()
    assert "already holds a run; pass --resume" in failure(capsys, *words)
    assert main([*words, "--resume"]) == 0


def test_summary(models, capsys):
    assert main(["summary", "mlp", "--method", "k-tied", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overhead"] > 1 and len(found["layers"]) == 3
    assert main(["summary", str(models / "model-kinds")]) == 0
    assert "BatchEnsemble" in capsys.readouterr().out
    assert main(["summary", str(models / "model-kinds" / "model.safetensors")]) == 0
    capsys.readouterr()
    assert "no network of that name" in failure(capsys, "summary", "resnet19")


def test_report_again(tables, tmp_path, capsys):
    words = ["compare", str(tables / "kinds.csv"), *SMALL, "--method", "plain", "--out", str(tmp_path)]
    assert main(words) == 0
    (tmp_path / "report.html").unlink()
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "report.html")
    assert "holds no compare.json" in failure(capsys, "report", tmp_path / "missing")


def test_a_yaml_file_has_the_same_names(tables, tmp_path, capsys):
    pytest.importorskip("yaml")
    out = tmp_path / "out"
    config = tmp_path / "config.yaml"
    config.write_text(
        f"data: {tables / 'kinds.csv'}\nmethod: [plain]\nseeds: [0, 1]\nbudget: 1\nhidden: [4]\nsamples: 3\n"
        f"lr: 1e-3\ndevice: cpu\nout: {out}\njson: true\n"
    )
    assert main(["compare", "--config", str(config), "--samples", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["samples"] == 2 and result["seeds"] == [0, 1]
    assert result["settings"]["budget"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smaples: 3", "a setting 'smaples' that this command does not have"),
        ("samples: many", "samples in .* cannot be 'many'"),
        ("method: [rank2]", r"method in .* cannot be \['rank2'\]: it must be one of plain, .*.*did you mean rank1"),
        ("json: 3", "json in .* is true or false"),
        ("samples: [1, 2]", "takes one value"),
        ("- 1", "must hold names and values"),
        ("a: [", "cannot be understood"),
    ],
)
def test_configurations_that_make_no_sense(tmp_path, capsys, text, expected):
    pytest.importorskip("yaml")
    (tmp_path / "config.yaml").write_text(text)
    line = failure(capsys, "compare", "digits", "--config", tmp_path / "config.yaml")
    assert re.search(expected, line)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compare", "nothing"], "there is no data set named 'nothing'"),
        (["compare", "nothing.csv"], "there is no file nothing.csv"),
        (["compare", "mnist", "--root", "/nowhere"], "mnist"),
        (["compare", "digits", "--budget", "slow"], "budget is fast, normal or a number of epochs"),
        (["compare", "digits", "--model", "lenet6"], "there is no model named 'lenet6'"),
        (["compare", "digits", "--resume"], "--resume needs --out"),
        (["compare", "digits", "--size", "9"], "data set 'digits' has no option 'size'"),
        (["evaluate", "nowhere", "digits"], "holds no trained model"),
        (["predict", "nowhere", "x.csv", "--out", "x.txt"], "must end in .csv, .parquet, .npz, .json"),
        (["bench", "alexnet"], "there is no network 'alexnet' to measure; there are mlp, lenet5"),
        (["bench", "--methods", "rank2"], "there is no method 'rank2' to measure; there are rank1"),
        (["bench", "--resume"], "--resume needs --out"),
        (["compare", "digits", "--config", "/nowhere.yaml"], "cannot be read"),
    ],
)
def test_errors_are_one_sentence(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in failure(capsys, *words)


def test_a_text_column_needs_no_flag(tables, tmp_path, capsys):
    words = ["fit", str(tables / "text.csv"), *SMALL, "--method", "plain", "--out", str(tmp_path / "model")]
    assert main(words) == 0
    assert "note: categories: 'b'" in capsys.readouterr().out


def test_labels_out_of_range(tables, tmp_path, capsys):
    assert "must be from 0 to" in failure(capsys, "compare", tables / "labels.npz", "--out", tmp_path / "out")


def test_augmentation_of_a_table_is_an_error(tables, tmp_path, capsys):
    words = [tables / "kinds.csv", *SMALL, "--augment", "--out", tmp_path / "out"]
    for command in ("compare", "fit"):
        assert "--augment crops and flips images" in failure(capsys, command, *words)
    assert not (tmp_path / "out" / "compare.json").exists()


def test_limited_data_and_data_from_elsewhere_below_the_root(tmp_path, capsys):
    for name in ("mnist", "fashion-mnist"):
        generate.write(name, tmp_path, rows=(40, 20))
    words = f"compare mnist --root {tmp_path} --ood fashion-mnist --limit 10 --no-augment --method plain --json".split()
    assert main([*words, *SMALL, "--out", str(tmp_path / "out")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["settings"]["examples"] == [10, 4, 10] and result["settings"]["ood_name"] == "fashion-mnist"
    assert "limited to 10 of 36 train, 4 of 4 valid, 10 of 20 test examples" in result["notes"]


def test_new_data_of_another_form(models, tmp_path, capsys):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "lacks the column 'c'" in failure(capsys, "predict", models / "model-kinds", tmp_path / "other.csv")
    (tmp_path / "new.csv").write_text("a,b,c\n1,2,3\n")
    text = failure(capsys, "evaluate", models / "model-kinds", tmp_path / "new.csv")
    assert "has no targets" in text
    assert "was trained on" in failure(capsys, "evaluate", models / "model-kinds", "digits")


def test_a_folder_of_another_command(tables, tmp_path, capsys):
    data = [str(tables / "kinds.csv"), *SMALL, "--method", "plain", "--out"]
    assert main(["fit", *data, str(tmp_path / "fit")]) == main(["compare", *data, str(tmp_path / "compare")]) == 0
    text = failure(capsys, "compare", *data, tmp_path / "fit")
    assert "holds a model that was trained alone; choose another folder" in text
    for words in ([], ["--resume"]):
        text = failure(capsys, "fit", *data, tmp_path / "compare", *words)
        assert "holds a comparison; choose another folder for a model" in text


def test_a_folder_that_cannot_be_written(tables, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    text = failure(capsys, "compare", tables / "kinds.csv", *SMALL, "--out", tmp_path / "file" / "out")
    assert "cannot write in the output folder" in text


def test_a_full_disk_leaves_no_half_written_file(tables, tmp_path, capsys, monkeypatch):
    words = ["compare", str(tables / "kinds.csv"), *SMALL, "--out", str(tmp_path), "--method"]
    assert main([*words, "plain"]) == 0
    before = (tmp_path / "compare.json").read_bytes()
    capsys.readouterr()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(leanbayes.training.files.os, "fsync", full)
    assert main([*words, "plain", "rank1", "--resume"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.undo()
    assert (tmp_path / "compare.json").read_bytes() == before
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    assert main([*words, "plain", "rank1", "--resume"]) == 0


def test_ctrl_c_has_its_exit_code(tables, tmp_path, capsys, monkeypatch):
    words = ["compare", str(tables / "kinds.csv"), *SMALL, "--out", str(tmp_path), "--method", "plain", "rank1"]

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("leanbayes.compare.run.measure_model", interrupt)
        assert main(words) == 130
    err = capsys.readouterr().err.strip()
    assert err == "leanbayes: error: interrupted; --resume goes on where there is a checkpoint"
    assert (tmp_path / "plain" / "seed0" / "last.pt").exists()
    assert main([*words, "--resume"]) == 0
    assert not (tmp_path / "plain" / "seed0" / "last.pt").exists()


def test_debug_shows_the_error(capsys):
    with pytest.raises(ValueError, match="no data set"):
        main(["compare", "nothing", "--debug"])


def test_unexpected_errors_name_their_kind(capsys, monkeypatch):
    def broken(options):
        raise RuntimeError("a\nb")

    monkeypatch.setattr("leanbayes.cli._options.load_data", broken)
    assert "RuntimeError: a b; run it again with --debug" in failure(capsys, "compare", "digits")


@pytest.mark.parametrize("command", [[], *([module.__name__.rsplit(".", 1)[1]] for module in _COMMANDS)], ids=str)
def test_help_everywhere(capsys, command):
    assert main([*command, "--help"]) == 0
    assert "usage: leanbayes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [[], ["dance"], ["compare"], ["compare", "digits", "--samples", "0"], ["compare", "digits", "--samples", "some"]],
)
def test_arguments_that_make_no_sense(capsys, words):
    assert main(words) == 2
    written = capsys.readouterr()
    (line,) = written.err.splitlines()
    assert written.out == "" and re.match(r"leanbayes: error: .*; see leanbayes( compare)? --help", line)


def test_ctrl_c_within_training_says_where_it_goes_on(tables, tmp_path, capsys, monkeypatch):
    from leanbayes.training.engine import _Training

    words = ["fit", str(tables / "kinds.csv"), *SMALL, "--budget", "3", "--out", str(tmp_path)]
    begin = _Training._begin

    def interrupt(self):
        batches = begin(self)
        if self.epoch == 1:
            raise KeyboardInterrupt
        return batches

    with monkeypatch.context() as patch:
        patch.setattr(_Training, "_begin", interrupt)
        assert main(words) == 130
    err = capsys.readouterr().err.strip()
    assert "interrupted in epoch 2" in err and "--resume goes on from the checkpoint" in err and "\n" not in err
    assert main([*words, "--resume"]) == 0
