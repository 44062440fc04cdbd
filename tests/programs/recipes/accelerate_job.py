"""Hugging Face Accelerate: a plain loop, prepared by an Accelerator.

    monarch run --root DIR -- accelerate launch --cpu --num_processes 2 accelerate_job.py DIR
"""
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main(root):
    set_seed(7)
    accelerator = Accelerator(cpu=True)
    data = datasets.ImageFolder(f"{root}/pictures", transforms.ToTensor())
    loader = DataLoader(data, 8, shuffle=True)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 24, 4))
    net, step, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.01), loader)
    for epoch in range(3):
        total = 0.0
        for pictures, labels in loader:
            loss = torch.nn.functional.cross_entropy(net(pictures), labels)
            step.zero_grad()
            accelerator.backward(loss)
            step.step()
            total += accelerator.gather(loss.detach()).sum().item()
        accelerator.print("epoch", epoch, "loss", float(total).hex(), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
