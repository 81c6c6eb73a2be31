"""Lightning's Trainer on scikit-learn's handwritten digits, with a distribution over every weight.

`python examples/lightning_module.py [--epochs 20]` takes under a minute on two cores. `LitELBO` is an ordinary
LightningModule: the Trainer's devices, precision, callbacks and loggers work as ever.
"""

import argparse

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

import leanbayes as lb
from leanbayes.training import LitELBO, TrainConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    L.seed_everything(0, verbose=False)

    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    train, valid, test = random_split(digits, [0.5, 0.1, 0.4])
    loader = DataLoader(train, batch_size=64, shuffle=True)

    model = lb.bayesianize(lb.models.create("mlp", in_features=64, hidden=(128, 128)), lb.KTied())
    config = TrainConfig(epochs=epochs, lr=2e-3, schedule="cosine", anneal=epochs / 4)
    module = LitELBO(model, dataset_size=len(train), config=config, steps_per_epoch=len(loader))
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="auto", devices=1, logger=False, enable_checkpointing=False, log_every_n_steps=5
    )
    trainer.fit(module, loader, DataLoader(valid, batch_size=64))

    x, y = (torch.stack(part) for part in zip(*test))
    prediction = lb.predict(model, x.to(module.device), samples=50, seed=0)
    accuracy = (prediction.label.cpu() == y).float().mean()
    nll = -prediction.log_prob(y.to(module.device)).mean()
    print(f"test accuracy {accuracy:.1%}, NLL {nll:.3f}, of {len(y)} images")


if __name__ == "__main__":
    main()
