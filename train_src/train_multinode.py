"""Train a small network on synthetic data with DistributedDataParallel: on one process, one machine, or many.

    python train_multinode.py
    torchrun --nproc_per_node=2 train_multinode.py --total_epochs 10 --save_every 5

Every `--save_every` epochs a snapshot replaces the last one in the checkpoints directory; a later start goes on from
there.  At the end rank 0 writes model.pt and metrics.json into the model directory.  The directories are
PAI_OUTPUT_CHECKPOINTS and PAI_OUTPUT_MODEL, or ./output/checkpoints and ./output/model where those are not set.

The same options on the same number of processes give the same weights, however often the training was interrupted.
It needs torch 1.10 or later and nothing else.
"""

import argparse
import io
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, FEATURES, SEED = 2048, 20, 1234


def main():
    options = parse_options()
    device = join_group(options)
    train(options, device)
    leave_group(device)


def parse_options():
    parser = argparse.ArgumentParser(description="DDP on synthetic data")
    parser.add_argument("--total_epochs", type=int, default=10, help="epochs in all, those before a resume included")
    parser.add_argument("--save_every", type=int, default=5, help="epochs between snapshots")
    parser.add_argument("--batch_size", type=int, default=64, help="samples per process and step")
    parser.add_argument("--fail_at", type=int, metavar="EPOCH", help="raise an error in this epoch, unless resumed")
    parser.add_argument("--fail_rank", type=int, default=0, metavar="RANK", help="the rank on which --fail_at does so")
    # torch.distributed.launch passes its local rank as an argument, older versions with an underscore.
    parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    options = parser.parse_args()
    for name in ("total_epochs", "save_every", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


def join_group(options):
    """Join the other processes, or be a group of one, and return the device to compute on."""
    torch.set_num_threads(1)  # two processes of one machine would only fight over its cores
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    enough_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size
    backend = "nccl" if enough_gpus and dist.is_nccl_available() else "gloo"
    device = torch.device("cuda", options.local_rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # set by whoever started us, together with WORLD_SIZE and where to meet
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def leave_group(device):
    """Nobody leaves before all are done: who still works would find the connections of the others closed."""
    dist.all_reduce(torch.zeros(1, device=device))  # as barrier(), which takes its own choice of a device with nccl
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.destroy_process_group()


def train(options, device):
    snapshot_file = output_directory("checkpoints") / "snapshot.pt"
    torch.manual_seed(SEED)  # every rank makes the same data and begins with the same weights
    data = synthetic_data()
    sampler = DistributedSampler(data, seed=SEED)
    samples = DataLoader(data, options.batch_size, sampler=sampler)
    model = DistributedDataParallel(network().to(device), device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    history = load_snapshot(snapshot_file, model, optimizer, device)
    fail_at = options.fail_at if not history and dist.get_rank() == options.fail_rank else None

    for epoch in range(len(history) + 1, options.total_epochs + 1):
        if epoch == fail_at:
            raise RuntimeError(f"rank {options.fail_rank} fails in epoch {epoch}, as --fail_at asked")
        began = time.perf_counter()
        sampler.set_epoch(epoch)  # another order in every epoch, and the same one after a resume
        history.append(run_epoch(model, optimizer, samples, device))
        report(f"epoch {epoch}/{options.total_epochs}  loss {history[-1]:.6f}  {time.perf_counter() - began:.2f} s")
        if epoch % options.save_every == 0 and dist.get_rank() == 0:
            save_snapshot(snapshot_file, model, optimizer, history)

    if dist.get_rank() == 0:
        save_model(output_directory("model"), model, history)


def synthetic_data():
    """Points around a curved surface, with a little noise: enough for a loss that falls."""
    points = torch.randn(SAMPLES, FEATURES)
    heights = torch.sin(points @ torch.randn(FEATURES, 1) / 3) + 0.05 * torch.randn(SAMPLES, 1)
    return TensorDataset(points, heights)


def network():
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))


def run_epoch(model, optimizer, samples, device):
    """One pass over this rank's share; returns the mean loss over all ranks."""
    total = torch.zeros(1, device=device)
    for points, heights in samples:
        loss = nn.functional.mse_loss(model(points.to(device)), heights.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / len(samples) / dist.get_world_size()


def load_snapshot(file, model, optimizer, device):
    """Go on where the snapshot ends, if there is one; returns the losses of the epochs that lie behind it."""
    snapshot = from_rank_0(file.read_bytes() if dist.get_rank() == 0 and file.exists() else b"", device)
    if not snapshot:
        return []
    state = torch.load(io.BytesIO(snapshot), map_location="cpu")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    report(f"resumed from {file} after epoch {len(state['history'])}")
    return state["history"]


def from_rank_0(content, device):
    """Rank 0's bytes, on every rank: on another machine the checkpoints directory may be empty, or an old one."""
    size = torch.tensor([len(content)], device=device)
    dist.broadcast(size, src=0)
    received = bytearray(content) or bytearray(size.item())
    if received:
        view = torch.frombuffer(received, dtype=torch.uint8)
        moving = view.to(device)
        dist.broadcast(moving, src=0)
        view.copy_(moving)
    return received


def save_snapshot(file, model, optimizer, history):
    """Replace the snapshot at once: whenever this process is killed, the old or the new one is there, whole."""
    state = {"model": weights(model), "optimizer": optimizer.state_dict(), "history": history}
    write_whole(file, lambda out: torch.save(state, out))
    report(f"snapshot of epoch {len(history)} in {file}")


def save_model(directory, model, history):
    metrics = {"epochs": len(history), "loss": history[-1], "history": history, "world_size": dist.get_world_size()}
    write_whole(directory / "model.pt", lambda out: torch.save(weights(model), out))
    write_whole(directory / "metrics.json", lambda out: out.write(json.dumps(metrics, indent=2).encode()))
    report(f"model in {directory / 'model.pt'}")


def weights(model):
    """The network's own weights on the CPU, so that they load anywhere, with or without DDP."""
    return {name: value.cpu() for name, value in model.module.state_dict().items()}


def write_whole(file, write):
    """Write beside the file, make sure of the disk, then take its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + ".unfinished")
    with open(unfinished, "wb") as out:
        write(out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(unfinished, file)


def output_directory(channel):
    return Path(os.environ.get(f"PAI_OUTPUT_{channel.upper()}") or f"output/{channel}")


def report(text):
    """One line from rank 0 speaks for all."""
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
