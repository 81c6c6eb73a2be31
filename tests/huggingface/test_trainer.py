"""BayesTrainer: the ELBO of the accumulated batch, resumed runs, checkpoints of activations, evaluation."""

import math

import pytest
import torch

import leanbayes as lb
from leanbayes.metrics import functional

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
tiny = pytest.importorskip("tests.huggingface.tiny")
from leanbayes.huggingface import BayesTrainer, from_pretrained  # noqa: E402

METHODS = {
    "rank1": lb.Rank1(components=2),
    "mean-field": lb.MeanField(init_std=0.1),
    "k-tied": lb.KTied(rank=1),
    "emp": lb.EMP(components=2),
}


@pytest.fixture(autouse=True)
def verbosity():
    """The Trainer sets that of the library."""
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)


def make(network="classifier", method="mean-field"):
    torch.manual_seed(0)
    return lb.bayesianize(getattr(tiny, network)(), METHODS[method])


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "dataloader_pin_memory": False,
    }
    return transformers.TrainingArguments(**(settings | changes))


def same(model, other):
    state, others = model.state_dict(), other.state_dict()
    return state.keys() == others.keys() and all(torch.equal(state[key], others[key]) for key in state)


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_the_run_that_did_not_stop(method, tmp_path):
    def trainer(folder, **changes):
        args = arguments(
            folder, max_steps=6, save_strategy="steps", save_steps=3, lr_scheduler_type="linear", **changes
        )
        schedule = lb.LinearAnneal(10)
        return BayesTrainer(make(method=method), args, train_dataset=tiny.labelled(20), kl_weight=schedule)

    whole = trainer(tmp_path, gradient_accumulation_steps=2)
    whole.train()
    resumed = trainer(tmp_path, gradient_accumulation_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert whole.elbo is not resumed.elbo
    assert int(whole.elbo.step) == int(resumed.elbo.step) == 6
    assert whole.elbo.weight_now == resumed.elbo.weight_now == pytest.approx(0.6)
    assert same(whole.model, resumed.model)
    assert [logs["kl_weight"] for logs in whole.state.log_history[:6]] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    again = from_pretrained(transformers.AutoModelForSequenceClassification, tmp_path / "checkpoint-6")
    assert same(again, whole.model)


def test_a_second_run_counts_its_own_steps(tmp_path):
    trainer = BayesTrainer(
        make(), arguments(tmp_path, max_steps=2), train_dataset=tiny.labelled(), kl_weight=lb.LinearAnneal(10)
    )
    trainer.train()
    trainer.train()
    assert int(trainer.elbo.step) == 2


def by_hand(model, data, steps, size, shift, lr=0.1):
    """Steps of gradient descent on (sum of NLL + weight * KL * examples / size) / targets, without the ELBO."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    weights = lb.LinearAnneal(4)
    for step, rows in enumerate(steps):
        optimizer.zero_grad()
        x = torch.stack([data[row]["input_ids"] for row in rows])
        y = torch.stack([data[row]["labels"] for row in rows])
        with lb.sampling(mean=True):
            logits = model(input_ids=x).logits
        if shift:
            logits, y = logits[:, :-1], y[:, 1:]
        nll = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), reduction="sum")
        loss = nll + weights(step) * lb.kl(model) * len(rows) / size
        (loss / (y != -100).sum()).backward()
        optimizer.step()


@pytest.mark.parametrize("network", ["classifier", "gpt2"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_loss_is_that_of_the_accumulated_batch(network, accumulate, tmp_path):
    data = tiny.texts() if network == "gpt2" else tiny.labelled()
    args = arguments(
        tmp_path,
        num_train_epochs=2,
        gradient_accumulation_steps=accumulate,
        optim="sgd",
        learning_rate=0.1,
        max_grad_norm=0,
        train_sampling_strategy="sequential",
    )
    trainer = BayesTrainer(make(network), args, train_dataset=data, kl_weight=lb.LinearAnneal(4))
    with lb.sampling(mean=True):
        trainer.train()
    expected = make(network).train()
    # The last micro-batch has two examples and not four.
    micro = [range(0, 4), range(4, 8), range(8, 10)] * 2
    steps = micro if accumulate == 1 else [range(10)] * 2
    by_hand(expected, data, steps, len(data), shift=network == "gpt2")
    assert int(trainer.elbo.step) == len(steps)
    for (name, found), (_, wanted) in zip(trainer.model.named_parameters(), expected.named_parameters()):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_logs_hold_the_parts_of_the_loss(tmp_path):
    data = tiny.texts(4)
    model = make("gpt2")
    kl = lb.kl(model).item()
    trainer = BayesTrainer(
        model, arguments(tmp_path, max_steps=1), train_dataset=data, kl_weight=0.5, dataset_size=1000
    )
    trainer.train()
    logs = trainer.state.log_history[0]
    targets = sum(int((row["labels"][1:] != -100).sum()) for row in data)
    assert logs["kl"] == pytest.approx(kl)
    assert logs["kl_weight"] == 0.5
    assert logs["loss"] == pytest.approx(logs["nll"] + 0.5 * kl * 4 / 1000 / targets, rel=1e-5)


def test_the_optimiser_has_our_groups(tmp_path):
    args = arguments(tmp_path, weight_decay=0.1)
    trainer = BayesTrainer(make(), args, train_dataset=tiny.labelled(), variational_lr=0.5)
    groups = {group["name"]: group for group in trainer.create_optimizer().param_groups}
    wanted = {group["name"]: group for group in lb.param_groups(trainer.model, 1e-2, 0.1, 0.5)}
    assert groups.keys() == wanted.keys() == {"points", "means", "variational"}
    for name, group in wanted.items():
        assert (groups[name]["lr"], groups[name]["weight_decay"]) == (group["lr"], group["weight_decay"])
        assert [id(p) for p in groups[name]["params"]] == [id(p) for p in group["params"]]
    assert groups["means"]["weight_decay"] == 0
    assert type(trainer.optimizer) is torch.optim.AdamW


def test_optimisers_with_parameters_of_their_own_are_refused(tmp_path):
    trainer = BayesTrainer(make(), arguments(tmp_path), train_dataset=tiny.labelled())
    trainer.optimizer_cls_and_kwargs = (torch.optim.SGD, {"optimizer_dict": {}})
    with pytest.raises(ValueError, match="groups parameters itself"):
        trainer.create_optimizer()


@pytest.mark.parametrize("method", METHODS)
def test_gradient_checkpointing_keeps_the_draws(method, tmp_path):
    trained = []
    for switch in (False, True):
        args = arguments(tmp_path, max_steps=3, gradient_checkpointing=switch)
        trainer = BayesTrainer(make("gpt2", method), args, train_dataset=tiny.texts())
        trainer.train()
        trained.append(trainer.model)
    assert trained[1].is_gradient_checkpointing
    for found, wanted in zip(trained[1].parameters(), trained[0].parameters()):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_the_bare_switch_is_an_error_and_not_a_wrong_gradient():
    model = make("gpt2", "rank1").train()
    model.gradient_checkpointing_enable()
    elbo = lb.ELBO(model, 100, lb.Categorical(class_dim=-1))
    x = tiny.tokens()
    with pytest.raises(RuntimeError, match="pass context_fn=lb.checkpoint_contexts"):
        elbo({"input_ids": x}, x).loss.backward()


def test_what_a_converted_model_cannot_do_is_refused(tmp_path):
    reentrant = arguments(tmp_path, gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(ValueError, match="reentrant checkpointing"):
        BayesTrainer(make(), reentrant, train_dataset=tiny.labelled())
    for name, value, message in (("fsdp", ["full_shard"], "FSDP"), ("_n_gpu", 2, "torchrun")):
        args = arguments(tmp_path)
        setattr(args, name, value)
        with pytest.raises(ValueError, match=message):
            BayesTrainer(make(), args, train_dataset=tiny.labelled())
    with pytest.raises(ValueError, match="BayesTrainer holds no rows out"):
        likelihood = lb.Gaussian("learned", held_out=True)
        BayesTrainer(make(), arguments(tmp_path), train_dataset=tiny.labelled(), likelihood=likelihood)


def test_mixed_precision_keeps_parameters_and_divergence_in_single(tmp_path):
    model = make()
    kl = lb.kl(model).item()
    trainer = BayesTrainer(model, arguments(tmp_path, max_steps=2, bf16=True), train_dataset=tiny.labelled())
    seen = []
    model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    trainer.train()
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert trainer.state.log_history[0]["kl"] == pytest.approx(kl, rel=1e-6)
    assert math.isfinite(trainer.state.log_history[1]["loss"])


def test_evaluation_scores_the_averaged_prediction(tmp_path):
    model, data = make(), tiny.labelled()
    seen = {}

    def metrics(prediction):
        seen["logits"], seen["labels"] = prediction
        return {"mine": 1.0}

    args = arguments(tmp_path, per_device_eval_batch_size=10, seed=3)
    trainer = BayesTrainer(model, args, eval_dataset=data, eval_samples=5, compute_metrics=metrics)
    found = trainer.evaluate()
    x, y = (torch.stack([row[name] for row in data]) for name in ("input_ids", "labels"))
    wanted = lb.predict(model, {"input_ids": x}, samples=5, seed=3)
    nll = pytest.approx(-wanted.log_prob(y).mean().item(), rel=1e-5)
    assert found["eval_loss"] == nll
    assert found["eval_nll"] == nll
    assert found["eval_accuracy"] == pytest.approx((wanted.label == y).float().mean().item())
    assert found["eval_ece"] == pytest.approx(functional.expected_calibration_error(wanted, y).item(), abs=1e-6)
    assert found["eval_mutual_information"] == pytest.approx(wanted.mutual_information.mean().item(), rel=1e-4)
    assert found["eval_mine"] == 1.0
    torch.testing.assert_close(torch.tensor(seen["logits"]).softmax(-1), wanted.probs)
    assert seen["labels"].tolist() == y.tolist()
    assert trainer.predict(data, metric_key_prefix="test").metrics["test_nll"] == pytest.approx(found["eval_nll"])


@pytest.mark.parametrize("batch", [10, 3])
def test_evaluation_of_texts_counts_tokens(batch, tmp_path):
    model, data = make("gpt2"), tiny.texts()
    args = arguments(tmp_path, per_device_eval_batch_size=batch)
    trainer = BayesTrainer(model, args, eval_dataset=data, eval_samples=4)
    found = trainer.evaluate()
    x, y = (torch.stack([row[name] for row in data]) for name in ("input_ids", "labels"))
    probs = lb.predict(model, {"input_ids": x}, 4, seed=42, likelihood=lb.Categorical(class_dim=-1)).probs[:, :-1]
    y = y[:, 1:]
    counted = y != -100
    nll = pytest.approx(-probs[counted].gather(1, y[counted].unsqueeze(1)).log().mean().item(), rel=1e-5)
    assert found["eval_loss"] == nll
    assert found["eval_nll"] == nll
    right = functional.expected_calibration_error(probs[counted], y[counted])
    assert found["eval_ece"] == pytest.approx(right.item(), abs=1e-6)


def test_evaluation_does_not_disturb_training(tmp_path):
    trained = []
    for strategy in ("no", "steps"):
        args = arguments(tmp_path, max_steps=3, eval_strategy=strategy, eval_steps=1)
        trainer = BayesTrainer(
            make(), args, train_dataset=tiny.labelled(), eval_dataset=tiny.labelled(6), eval_samples=2
        )
        trainer.train()
        trained.append(trainer.model)
    assert same(*trained)


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    args = arguments(
        tmp_path,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="nll",
        greater_is_better=True,
    )
    data = tiny.labelled()
    trainer = BayesTrainer(make(), args, train_dataset=data, eval_dataset=data, eval_samples=2)
    trainer.train()
    # The worst one: training makes it better from step to step.
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")
    first = from_pretrained(transformers.AutoModelForSequenceClassification, tmp_path / "checkpoint-1")
    assert same(trainer.model, first)
    assert trainer.evaluate()["eval_nll"] == pytest.approx(trainer.state.best_metric)


def test_data_without_a_length_needs_its_size(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(tiny.labelled())

    trainer = BayesTrainer(make(), arguments(tmp_path, max_steps=1), train_dataset=Stream())
    with pytest.raises(ValueError, match="pass dataset_size"):
        trainer.train()
    trainer = BayesTrainer(make(), arguments(tmp_path, max_steps=1), train_dataset=Stream(), dataset_size=10)
    trainer.train()
    assert trainer.elbo.dataset_size == 10


def test_learned_noise_is_trained_saved_and_resumed(tmp_path):
    def trainer(**changes):
        torch.manual_seed(0)
        model = lb.bayesianize(tiny.classifier(problem_type="regression"), METHODS["mean-field"])
        data = [{"input_ids": row["input_ids"], "labels": torch.randn(3)} for row in tiny.labelled()]
        args = arguments(tmp_path, optim="sgd", save_strategy="steps", save_steps=1, **changes)
        return BayesTrainer(model, args, train_dataset=data, eval_dataset=data, eval_samples=3)

    whole = trainer(max_steps=2)
    likelihood = whole.likelihood
    whole.train()
    assert likelihood.log_precision.shape == (3,)
    assert likelihood.log_precision.abs().min() > 0
    assert not likelihood.log_precision.grad  # zeroed with the model's
    resumed = trainer(max_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert torch.equal(resumed.likelihood.log_precision, likelihood.log_precision)
    assert {"eval_nll", "eval_rmse"} <= whole.evaluate().keys()


def test_the_best_model_has_its_noise(tmp_path):
    torch.manual_seed(0)
    model = lb.bayesianize(tiny.classifier(problem_type="regression"), METHODS["mean-field"])
    data = [{"input_ids": row["input_ids"], "labels": torch.randn(3)} for row in tiny.labelled()]
    every_step = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "nll", "greater_is_better": False}
    args = arguments(tmp_path, max_steps=4, learning_rate=1.0, **every_step, **best)
    trainer = BayesTrainer(model, args, train_dataset=data, eval_dataset=data, eval_samples=3)
    trainer.train()
    assert not trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert trainer.evaluate()["eval_nll"] == pytest.approx(trainer.state.best_metric)


def test_several_labels_of_an_example(tmp_path):
    torch.manual_seed(0)
    model = lb.bayesianize(tiny.classifier(problem_type="multi_label_classification"), METHODS["rank1"])
    data = [{"input_ids": row["input_ids"], "labels": torch.tensor([1.0, 0.0, 1.0])} for row in tiny.labelled()]
    trainer = BayesTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=data, eval_dataset=data)
    trainer.train()
    assert isinstance(trainer.likelihood, lb.Bernoulli)
    assert trainer.evaluate()["eval_nll"] == pytest.approx(3 * math.log(2), rel=0.1)


def test_a_single_output_of_a_text_is_a_value(tmp_path):
    data = [{"input_ids": row, "labels": row[0] / 10} for row in tiny.tokens(8)]
    torch.manual_seed(0)
    model = lb.bayesianize(tiny.classifier(num_labels=1), METHODS["rank1"])
    trainer = BayesTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=data, eval_dataset=data)
    trainer.train()
    assert isinstance(trainer.likelihood, lb.Gaussian) and "eval_rmse" in trainer.evaluate()


def test_a_batch_without_targets_changes_nothing(tmp_path):
    data = [row | {"labels": torch.full_like(row["labels"], -100)} for row in tiny.texts(8)]
    model = make("gpt2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = BayesTrainer(model, arguments(tmp_path, max_steps=2, weight_decay=0.0), train_dataset=data)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == 0 and math.isnan(trainer.state.log_history[0]["nll"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_encoders_with_decoders_read_their_labels(tmp_path):
    data = tiny.texts(4)
    trainer = BayesTrainer(make("t5", "rank1"), arguments(tmp_path, max_steps=1), train_dataset=data)
    with lb.sampling(mean=True, component=0):
        trainer.train()
    x, y = (torch.stack([row[name] for row in data]) for name in ("input_ids", "labels"))
    with lb.sampling(mean=True, component=0):
        wanted = make("t5", "rank1")(input_ids=x, labels=y).loss  # the mean over tokens
    assert trainer.state.log_history[0]["nll"] == pytest.approx(wanted.item(), rel=1e-5)


def test_models_that_shift_their_labels_themselves_are_given_them(tmp_path):
    sounds, y = torch.randn(4, 4, 12), tiny.tokens(4)
    data = [{"input_features": sound, "labels": labels} for sound, labels in zip(sounds, y)]
    model = make("whisper", "rank1")
    lb.predict(model, {"input_features": sounds, "decoder_input_ids": y}, 2)  # which has another boundary
    trainer = BayesTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=data, eval_dataset=data)
    with lb.sampling(mean=True, component=0):
        trainer.train()
        wanted = make("whisper", "rank1")(input_features=sounds, labels=y).loss
        measured = model.eval()(input_features=sounds, labels=y).loss
        assert trainer.evaluate()["eval_nll"] == pytest.approx(measured.item(), rel=1e-5)
    assert trainer.state.log_history[0]["nll"] == pytest.approx(wanted.item(), rel=1e-5)


def test_deep_ensembles_are_trained_as_their_members_are(tmp_path):
    data = tiny.texts(4)
    torch.manual_seed(0)
    model = lb.bayesianize(tiny.gpt2(), lb.DeepEnsemble(2))
    members = [lb.point_estimate(model, component=k) for k in range(2)]
    trainer = BayesTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=data)
    trainer.train()
    x, y = (torch.stack([row[name] for row in data]) for name in ("input_ids", "labels"))
    wanted = sum(member(input_ids=x, labels=y).loss.item() for member in members) / 2  # which shift the labels
    assert trainer.state.log_history[0]["nll"] == pytest.approx(wanted, rel=1e-5)


def test_the_likelihood_of_a_deep_ensemble_is_that_of_its_members(tmp_path):
    model = lb.bayesianize(tiny.classifier(num_labels=1), lb.DeepEnsemble(2))
    assert isinstance(BayesTrainer(model, arguments(tmp_path)).likelihood, lb.Gaussian)
    with pytest.raises(ValueError, match="gradient_checkpointing=True is not offered for deep ensembles"):
        BayesTrainer(model, arguments(tmp_path, gradient_checkpointing=True))


def test_checkpoints_of_others_are_refused(tmp_path):
    trainer = BayesTrainer(make(), arguments(tmp_path, max_steps=2), train_dataset=tiny.labelled())
    folder = tmp_path / "checkpoint-1"
    trainer.model.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"no elbo.safetensors"):
        trainer.train(resume_from_checkpoint=str(folder))


def test_labels_are_needed(tmp_path):
    data = [{"input_ids": row["input_ids"]} for row in tiny.labelled()]
    with pytest.raises(ValueError, match="the batch has no 'labels'"):
        BayesTrainer(make(), arguments(tmp_path, max_steps=1), train_dataset=data).train()
