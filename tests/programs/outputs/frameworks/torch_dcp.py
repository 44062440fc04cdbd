"""torch.distributed.checkpoint: `MODE` (sync, thread, process) of two shards' worth of state."""
import os, shutil, sys, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
import torch_plain
from training import digest, train

MODE = os.environ.get("MODE", "sync")


def parts(state):
    return {"model": state[0].state_dict(), "optimizer": get_optimizer_state_dict(*state)}


def save(state, step):
    at = f"step-{step}"
    if MODE == "sync":
        dcp.save(parts(state), checkpoint_id=at)
    else:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        kind = AsyncCheckpointerType.PROCESS if MODE == "process" else AsyncCheckpointerType.THREAD
        dcp.async_save(parts(state), checkpoint_id=at, async_checkpointer_type=kind).result()
    shutil.rmtree(f"step-{step - 2}", ignore_errors=True)


def load():
    found = [int(name.split("-")[1]) for name in os.listdir() if name.startswith("step-") and os.path.exists(f"{name}/.metadata")]
    if not found:
        return None
    state = torch_plain.fresh()
    torch_plain.advance(state, 0)
    wanted = parts(state)
    dcp.load(wanted, checkpoint_id=f"step-{max(found)}")
    state[0].load_state_dict(wanted["model"])
    set_optimizer_state_dict(*state, wanted["optimizer"])
    return state, max(found)


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", store=dist.HashStore() if MODE != "process" else dist.TCPStore("127.0.0.1", 0, 1, True), rank=0, world_size=1)
    if MODE == "process":
        # (The child finds the same store by its address.)
        os.environ["MASTER_PORT"] = str(dist.distributed_c10d._get_default_store().port) if hasattr(dist.distributed_c10d._get_default_store(), "port") else "29511"
    train(torch_plain.fresh, torch_plain.advance, save, load)
    dist.destroy_process_group()
