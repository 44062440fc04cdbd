"""PyTorch Lightning: a LightningModule, a DataLoader with workers, two epochs.

    monarch run --root DIR -- python lightning_job.py DIR
"""
import sys

import lightning as L
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 24, 4))
        self.losses = []

    def training_step(self, batch, _):
        pictures, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(pictures), labels)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print("epoch", self.current_epoch, "loss", float(sum(self.losses)).hex(), flush=True)
        self.losses.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main(root):
    L.seed_everything(7, verbose=False)
    data = datasets.ImageFolder(f"{root}/pictures", transforms.ToTensor())
    loader = DataLoader(data, 8, shuffle=True, num_workers=2, persistent_workers=True)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main(sys.argv[1])
