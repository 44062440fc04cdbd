#!/usr/bin/env python3
"""PyTorch's usual job: ImageFolder, a DataLoader with workers of each kind, a small network trained
on what comes in.

`ranks` is the same on two ranks: it starts itself by `torch.distributed.run`; the first rank prints
for both.
"""
import os, sys, threading
import images, protocol

BATCH = 8


def picture(path):
    from PIL import Image
    with Image.open(path) as image:
        return image.convert("RGB")


def dataset(root):
    from torchvision import datasets, transforms
    return datasets.ImageFolder(root, transforms.PILToTensor(), loader=picture)


def network():
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(protocol.SEED)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(),
                               torch.nn.Linear(4 * ((images.SIDE - 1) // 2) ** 2, images.CLASSES))


def train(net, batches):
    """One epoch."""
    import torch
    epoch, step = protocol.Epoch(), torch.optim.SGD(net.parameters(), 0.01)
    epoch.loss = 0.0
    for inputs, labels in batches:
        for one, label in zip(inputs, labels):
            epoch.add(int(label), one)
        loss = torch.nn.functional.cross_entropy(net(inputs / 255), labels)
        step.zero_grad()
        loss.backward()
        step.step()
        epoch.loss += loss.item()
    return epoch


def loader(**options):
    """The way that reads by a DataLoader with these options."""
    def way(root):
        import torch
        net = network()
        order = torch.Generator().manual_seed(protocol.SEED)
        data = torch.utils.data.DataLoader(dataset(root), BATCH, shuffle=True, generator=order, **options)
        try:
            while True:
                yield train(net, data)
        except GeneratorExit:
            del data
            feeders_over()
    return way


def feeders_over():
    """Waits for the threads that fed the workers, which PyTorch asks to end and does not join.

    They take down the semaphores of spawned workers. If the interpreter ends in the middle of that,
    a semaphore is gone and still registered, and Python's resource tracker now and then warns of a
    leak, Monarch or not.
    """
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(10)


def ranks(root):
    if "RANK" not in os.environ:
        start_ranks()
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(network())
    data = dataset(root)
    share = torch.utils.data.DistributedSampler(data, seed=protocol.SEED)
    # Without workers: forked beside gloo's threads they hang now and then inside CPython 3.11.2's
    # own fork, Monarch or not.
    batches = torch.utils.data.DataLoader(data, BATCH, sampler=share)
    try:
        for number in range(10**9):
            share.set_epoch(number)
            lines = [None] * dist.get_world_size()
            dist.all_gather_object(lines, str(train(net, batches)))
            yield " | ".join(lines) if dist.get_rank() == 0 else None
    except GeneratorExit:
        dist.barrier()


def leave_rank(status):
    """Ends a rank at once: taking gloo down hangs or aborts now and then in PyTorch 1.13, Monarch
    or not."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def start_ranks():
    """Becomes the launcher (torchrun) of two ranks of this very command."""
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    # What the default (0, redirect nothing) means is lost on PyTorch 1.13 under Python 3.11: said
    # of a rank that is not there.
    launcher += ["--redirects=2:1", "--tee=2:1"]
    os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])


WAYS = {
    "inline": loader(num_workers=0),
    "forked": loader(num_workers=2, multiprocessing_context="fork"),
    "spawned": loader(num_workers=2, multiprocessing_context="spawn"),
    "persistent": loader(num_workers=2, persistent_workers=True),
    "ranks": ranks,
}

if __name__ == "__main__":
    try:
        protocol.main(images.make, WAYS)
    except SystemExit as end:
        if "RANK" in os.environ:
            leave_rank(end.code)
        raise
