"""A job that saves checkpoints, each with an order of its own, whose files can be checked alone.

    checkpoints.py STYLE STEPS SIZE [PAUSE]      in the output root; styles: the functions below

A file of a checkpoint is one line, "STEP NAME", repeated to SIZE bytes; markers are small. Prints
the longest time that a save took, in milliseconds, and `## end`.
"""
import json, os, shutil, sys, time

FILES = ("model.bin", "optimizer.bin", "rng.bin")


def part(path, step, size):
    line = f"{step:08} {os.path.basename(path)}\n".encode()
    with open(path, "wb") as f:
        for at in range(0, size, 1 << 20):
            n = min(1 << 20, size - at)
            f.write((line * (n // len(line) + 2))[at % len(line):][:n])


def folder(top, step, size):
    os.makedirs(top)
    for name in FILES:
        part(f"{top}/{name}", step, size)


def hf(step, size):
    """`trainer_state.json` last, then the old folder is removed."""
    folder(f"checkpoint-{step}", step, size)
    with open(f"checkpoint-{step}/trainer_state.json", "w") as f:
        json.dump({"global_step": step}, f)
    if step > 1:
        shutil.rmtree(f"checkpoint-{step - 1}")


def accelerate(step, size):
    """The old folder is removed before the new one is made."""
    if step > 1:
        shutil.rmtree(f"checkpoint-{step - 1}")
    folder(f"checkpoint-{step}", step, size)
    with open(f"checkpoint-{step}/trainer_state.json", "w") as f:
        json.dump({"global_step": step}, f)


def latest(step, size):
    """DeepSpeed, Megatron: a text file in place names the checkpoint."""
    folder(f"step{step}", step, size)
    with open("latest", "w") as f:
        f.write(f"step{step}")
    if step > 1:
        shutil.rmtree(f"step{step - 1}")


def dcp(step, size):
    """`.metadata.tmp` is written before the last shard, and renamed last of all."""
    os.makedirs(f"step{step}")
    part(f"step{step}/model.bin", step, size)
    with open(f"step{step}/.metadata.tmp", "w") as f:
        f.write(str(step))
        os.fsync(f.fileno())
    part(f"step{step}/optimizer.bin", step, size)
    part(f"step{step}/rng.bin", step, size)
    os.rename(f"step{step}/.metadata.tmp", f"step{step}/.metadata")
    if step > 1:
        shutil.rmtree(f"step{step - 1}")


def tensorflow(step, size):
    """Temporary directories, renames, and `checkpoint` renamed over the old one."""
    os.makedirs(f"tmp{step}")
    for name in FILES:
        part(f"tmp{step}/{name}", step, size)
    os.makedirs(f"step{step}")
    for name in FILES:
        os.rename(f"tmp{step}/{name}", f"step{step}/{name}")
    os.rmdir(f"tmp{step}")
    with open("latest.tmp", "w") as f:
        f.write(f"step{step}")
    os.rename("latest.tmp", "latest")
    if step > 1:
        shutil.rmtree(f"step{step - 1}")


def link(step, size):
    """A symbolic link that is made beside and renamed over the old one."""
    folder(f"step{step}", step, size)
    os.symlink(f"step{step}", "latest.tmp")
    os.replace("latest.tmp", "latest")
    if step > 1:
        shutil.rmtree(f"step{step - 1}")


def main():
    style, steps, size = globals()[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0
    longest = 0
    for step in range(1, steps + 1):
        start = time.monotonic()
        style(step, size)
        longest = max(longest, time.monotonic() - start)
        time.sleep(pause)
    print(f"longest {longest * 1000:.0f} ms\n## end", flush=True)


if __name__ == "__main__":
    main()
