"""Two processes of the Trainer: the steps that one process takes with batches of twice the size."""

import os
import socket

import pytest
import torch
import torch.multiprocessing as mp

import leanbayes as lb

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def train(folder, batch, accumulate):
    # Not at the top: processes are told their ranks before transformers is imported.
    from tests.huggingface import tiny
    from tests.huggingface.test_trainer import BayesTrainer, arguments

    torch.manual_seed(0)
    model = lb.bayesianize(tiny.gpt2(), lb.MeanField(init_std=0.1))
    args = arguments(
        folder,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        max_steps=2,
        optim="sgd",
        learning_rate=0.1,
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        save_strategy="steps",
        save_steps=2,
    )
    data = tiny.texts(16)
    trainer = BayesTrainer(model, args, train_dataset=data, eval_dataset=tiny.texts(7), kl_weight=lb.LinearAnneal(2))
    with lb.sampling(mean=True):
        trainer.train()
        scores = trainer.evaluate()
    found = {name: scores[f"eval_{name}"] for name in ("nll", "ece", "accuracy")}
    logs = [{name: log[name] for name in ("loss", "nll", "kl")} for log in trainer.state.log_history if "nll" in log]
    return {"state": model.state_dict(), "size": trainer.elbo.dataset_size, "scores": found, "logs": logs}


def run(rank, port, folder, accumulate):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.save(train(folder, 2, accumulate), os.path.join(folder, f"rank{rank}.pt"))


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_take_the_steps_of_one(accumulate, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, (port, str(tmp_path), accumulate), nprocs=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    alone = train(tmp_path / "alone", 4, accumulate)
    for found in ranks:
        assert found["size"] == alone["size"] == 16
        assert found["scores"] == pytest.approx(alone["scores"], rel=1e-5)
        assert len(found["logs"]) == len(alone["logs"]) == 2
        for ours, wanted in zip(found["logs"], alone["logs"]):
            assert ours == pytest.approx(wanted, rel=1e-4)
        for name, wanted in alone["state"].items():
            torch.testing.assert_close(found["state"][name], wanted, rtol=1e-4, atol=1e-6)
    from safetensors.torch import load_file

    assert int(load_file(tmp_path / "checkpoint-2" / "elbo.safetensors")["step"]) == 2
