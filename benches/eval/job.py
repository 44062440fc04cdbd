"""What every job of the evaluation does: epochs, one at a word from outside, a line of JSON for each.

A job is a generator function of (root, options) that reads one epoch at each step and yields what it came to: `loss`, and whatever else is
to be the same with every kind of storage. It begins an epoch when a line comes in, so that what the servers of the PFS counted can be
told apart by epochs; the time between is nobody's.
"""
import argparse, json, sys, time


def main(epoch_by_epoch, **defaults):
    p = argparse.ArgumentParser()
    p.add_argument("root")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--compute", type=float, default=0, metavar="MS", help="of each batch, on a device that leaves the processor alone")
    for name, value in defaults.items():
        p.add_argument(f"--{name}", type=type(value), default=value)
    a = p.parse_args()
    epochs = epoch_by_epoch(a.root, a)
    print(json.dumps(dict(ready=True)), flush=True)
    for number in range(1, a.epochs + 1):
        if not sys.stdin.readline():
            return
        start = time.perf_counter()
        told = next(epochs)
        print(json.dumps(dict(told, seconds=time.perf_counter() - start, epoch=number)), flush=True)


class Device:
    """Stands for a GPU: takes its time for each batch while the processor reads the next ones."""

    def __init__(self, ms):
        self.seconds, self.busy_until, self.busy = ms / 1000, 0.0, 0.0

    def work(self):
        """Gives it a batch; returns once it has done the one before."""
        if self.seconds:
            time.sleep(max(0.0, self.busy_until - time.perf_counter()))
            self.busy_until = time.perf_counter() + self.seconds
            self.busy += self.seconds

    def wait(self):
        time.sleep(max(0.0, self.busy_until - time.perf_counter()))


def read_epoch(batches, train, a):
    """One epoch: `train` gets what a batch holds and gives its loss and its number of files; then the device has its turn."""
    device, total, files = Device(a.compute), 0.0, 0
    for batch in batches:
        loss, n = train(batch)
        total += loss
        files += n
        device.work()
    device.wait()
    return dict(loss=total.hex(), files=files, device_s=device.busy)


def descend(step, loss):
    """A step of a PyTorch optimiser; the loss as a number."""
    step.zero_grad()
    loss.backward()
    step.step()
    return loss.item()
