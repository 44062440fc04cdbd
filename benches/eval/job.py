"""Runs the epochs of a job, each on request, and prints a line of JSON for each.

A job is a generator function of (root, options) that reads one epoch at each step and yields its
results: `loss`, and other figures that must be the same with every storage. An epoch begins when a
line arrives on standard input, so that the counters of the PFS's servers can be read between
epochs; the time between belongs to no epoch.
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
    """Simulates a GPU: each batch takes its time while the processor reads the next ones."""

    def __init__(self, ms):
        self.seconds, self.busy_until, self.busy = ms / 1000, 0.0, 0.0

    def work(self):
        """Hands over a batch; returns when the batch before is done."""
        if self.seconds:
            time.sleep(max(0.0, self.busy_until - time.perf_counter()))
            self.busy_until = time.perf_counter() + self.seconds
            self.busy += self.seconds

    def wait(self):
        time.sleep(max(0.0, self.busy_until - time.perf_counter()))


def read_epoch(batches, train, a):
    """One epoch: `train` gets a batch and returns its loss and its number of files; then the device
    computes."""
    device, total, files = Device(a.compute), 0.0, 0
    for batch in batches:
        loss, n = train(batch)
        total += loss
        files += n
        device.work()
    device.wait()
    return dict(loss=total.hex(), files=files, device_s=device.busy)


def descend(step, loss):
    """Makes a step of a PyTorch optimiser; returns the loss as a number."""
    step.zero_grad()
    loss.backward()
    step.step()
    return loss.item()
