"""The example of README.md: convert a network, train it in a plain PyTorch loop, predict with uncertainty."""

import torch

import leanbayes as lb

x = torch.randn(1000, 20)
y = x[:, :3].argmax(1)  # three classes
net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
net = lb.bayesianize(net, lb.Rank1(components=4))  # any module, any method; its weights are kept
elbo = lb.ELBO(net, dataset_size=len(x))  # owns the scale of the KL divergence
optimizer = torch.optim.Adam(lb.param_groups(elbo, lr=1e-2, weight_decay=1e-4))
for _ in range(5):
    for rows in torch.randperm(len(x)).split(100):
        optimizer.zero_grad()
        elbo(x[rows], y[rows]).loss.backward()
        optimizer.step()
prediction = lb.predict(net, torch.randn(5, 20), samples=20)  # averages probabilities over draws
print(prediction.label, prediction.confidence, prediction.mutual_information)
