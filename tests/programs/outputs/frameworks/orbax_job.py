"""Orbax: a CheckpointManager, synchronous or in the background (`HOW=async`)."""
import os
import numpy as np
import orbax.checkpoint as ocp
import safe
from training import digest, train

MANAGER = None


def manager():
    global MANAGER
    if MANAGER is None:
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=os.environ.get("HOW") == "async")
        MANAGER = ocp.CheckpointManager(os.path.abspath("ckpts"), options=options)
    return MANAGER


def save(state, step):
    manager().save(step, args=ocp.args.StandardSave({k: np.array(v) for k, v in state.items()}))


def load():
    os.makedirs("ckpts", exist_ok=True)
    manager().wait_until_finished()
    step = manager().latest_step()
    if step is None:
        return None
    found = manager().restore(step, args=ocp.args.StandardRestore(safe.fresh()))
    return {k: np.array(v) for k, v in found.items()}, step


if __name__ == "__main__":
    train(safe.fresh, safe.advance, save, load, lambda s: digest(b"".join(s[n].tobytes() for n in sorted(s))))
    manager().close()
