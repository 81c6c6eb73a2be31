"""ONNX files of a converted network: one plain network, and one that draws anew in every run.

`python examples/onnx_export.py [--out FOLDER]` takes under a minute. It needs `pip install 'leanbayes[onnx]'`.
"""

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

import leanbayes as lb


def train():
    """A small network that tells three classes apart."""
    torch.manual_seed(0)
    x = torch.randn(600, 8)
    y = x[:, :3].argmax(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    net = lb.bayesianize(net, lb.Rank1(components=4))
    elbo = lb.ELBO(net, dataset_size=len(x))
    optimizer = torch.optim.Adam(lb.param_groups(elbo, lr=1e-2))
    for _ in range(5):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            elbo(x[rows], y[rows]).loss.backward()
            optimizer.step()
    return net.eval()


def export(model, x, path):
    """Write a model for batches of any size; the exporter of an earlier torch may fix it for a network that draws."""
    batch = torch.export.Dim.AUTO
    with torch.no_grad():
        torch.onnx.export(model, (x,), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    out = parser.parse_args().out or Path(tempfile.mkdtemp())
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        sys.exit(f"this example needs {', '.join(missing)}: pip install 'leanbayes[onnx]'")
    import onnxruntime

    net = train()
    x = torch.randn(5, 8)

    def run(path, times=1):
        """Outputs of an ONNX file ``[times, B, C]``."""
        session = onnxruntime.InferenceSession(path)
        (name,) = (entry.name for entry in session.get_inputs())
        return torch.stack([torch.from_numpy(session.run(None, {name: x.numpy()})[0]) for _ in range(times)])

    # One network: at the means of a component, or at a draw with seed=.
    point = lb.point_estimate(net, component=0)
    export(point, x, out / "point.onnx")
    with torch.no_grad():
        difference = (run(out / "point.onnx")[0] - point(x)).abs().max()
    print(f"point estimate: outputs differ from torch's by at most {difference:.1e}")

    # A network that draws: run it several times, and average the probabilities.
    export(net, x, out / "sampled.onnx")
    sampled = lb.Prediction(run(out / "sampled.onnx", times=400), lb.Categorical())
    wanted = lb.predict(net, x, samples=400, seed=0, likelihood=lb.Categorical())
    print(f"sampled: probabilities differ by at most {(sampled.probs - wanted.probs).abs().max():.3f}")
    print("mutual information of ONNX ", [round(value, 4) for value in sampled.mutual_information.tolist()])
    print("mutual information of torch", [round(value, 4) for value in wanted.mutual_information.tolist()])


if __name__ == "__main__":
    main()
