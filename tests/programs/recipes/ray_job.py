"""Ray Train: two workers of a TorchTrainer, which Ray starts as processes of its own.

    monarch run --root DIR -- python ray_job.py DIR

`monarch run` stands before the program that calls `ray.init()`: the workers inherit its
environment. Workers of a cluster that was started before have that of `ray start` instead.
"""
import json, sys, tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def work(plan):
    import json
    import ray.train, ray.train.torch, torch
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms
    torch.manual_seed(7)
    data = datasets.ImageFolder(f"{plan['root']}/pictures", transforms.ToTensor())
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, 8, shuffle=True))
    net = ray.train.torch.prepare_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 24 * 24, 4)))
    step = torch.optim.SGD(net.parameters(), 0.01)
    losses = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        total = 0.0
        for pictures, labels in loader:
            loss = torch.nn.functional.cross_entropy(net(pictures), labels)
            step.zero_grad()
            loss.backward()
            step.step()
            total += loss.item()
        losses.append(float(total).hex())
    # (Results without a checkpoint are not kept by every release of Ray.)
    if ray.train.get_context().get_world_rank() == 0:
        with open(plan["losses"], "w") as out:
            json.dump(losses, out)


def main(root):
    with tempfile.TemporaryDirectory() as out:
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=True, logging_level="error")
        trainer = TorchTrainer(work, train_loop_config={"root": root, "losses": f"{out}/losses.json"}, scaling_config=ScalingConfig(num_workers=2),
                               run_config=RunConfig(name="recipe", storage_path=out))
        trainer.fit()
        with open(f"{out}/losses.json") as losses:
            for epoch, loss in enumerate(json.load(losses)):
                print("epoch", epoch, "loss", loss, flush=True)
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
