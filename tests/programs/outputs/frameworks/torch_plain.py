"""torch.save: a temporary file that is renamed, then `latest` in place, then the old one is deleted."""
import os, torch
from training import digest, train

torch.set_num_threads(1)


def fresh():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8))
    return model, torch.optim.Adam(model.parameters(), 1e-3)


def advance(state, step):
    model, optimizer = state
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(step))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def save(state, step):
    torch.save({"model": state[0].state_dict(), "optimizer": state[1].state_dict(), "step": step}, f"step{step}.pt.tmp")
    os.replace(f"step{step}.pt.tmp", f"step{step}.pt")
    with open("latest", "w") as f:
        f.write(f"step{step}.pt")
    if step > 2:
        os.unlink(f"step{step - 2}.pt")


def load():
    try:
        with open("latest") as f:
            name = f.read()
        saved = torch.load(name, mmap=True, weights_only=True)
    except (FileNotFoundError, IsADirectoryError, EOFError):
        return None
    state = fresh()
    state[0].load_state_dict(saved["model"])
    state[1].load_state_dict(saved["optimizer"])
    return state, saved["step"]


if __name__ == "__main__":
    train(fresh, advance, save, load, lambda s: digest(torch.cat([p.detach().flatten() for p in s[0].parameters()]).numpy().tobytes()))
