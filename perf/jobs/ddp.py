# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on scikit-learn's handwritten digits with DistributedDataParallel.

An ordinary PyTorch job: it says init_process_group("nccl"), uses the GPU of its rank where there is
one, and knows nothing of the machine's network. Start it with torchrun, or set RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR, MASTER_PORT.

    torchrun --nproc-per-node 2 ddp.py --epochs 3 --json result.json
"""

import argparse
import json
import os
import statistics
import time
import zlib

try:
    import numpy
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as functional
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"ddp.py: Python has no module '{missing.name}'; install torch, numpy and scikit-learn "
        "(Debian: python3-torch python3-numpy python3-sklearn)") from None

WARMUP_ITERATIONS = 3  # not timed: DDP lays its buckets out anew after the first iteration
TEST_IMAGES = 360

# name: (width, layers); 25.3 MB, 0.8 MB and (linear layers) 6.6 MB of gradients; the tiny ones, of
# about 100 kB, are for perf/accuracy, where many trainings are compared
MODELS = {"transformer": (512, 2), "small": (128, 1), "mlp": (1024, 3), "tiny-mlp": (128, 2),
          "tiny-transformer": (32, 2)}


class Transformer(nn.Module):
    """Reads an 8x8 image as eight rows and names the digit."""

    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.3 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        rows = self.embed(images) + self.position
        return self.head(self.norm(self.encoder(rows)).mean(dim=1))


def make_model(name):
    width, layers = MODELS[name]
    if name == "tiny-mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width),
                             nn.ReLU(), nn.Linear(width, 10))
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width),
                             nn.ReLU(), nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 10))
    return Transformer(width, layers)


class Device:
    """Where there is no GPU: gives an iteration the times it would have on one that needs so
    many milliseconds for it.

    A layer begins when the one before it ends, and lasts by its share of the parameters; an eighth
    of the time is the optimizer's (--optimizer-share), a third of the rest forward. The numbers are
    computed meanwhile, by the core that is a GPU's host otherwise, and do not leave a layer before
    it ends: the thread sleeps. What a core takes less than its layer is not seen, as a host's time
    is not while it runs ahead of a GPU; one that is late may catch up until the last layer. A layer
    that is held up for longer, because its weights were not there, begins when they are."""

    LATE = 2e-3   # seconds that a core may be late

    def __init__(self, model, milliseconds, optimizer):
        self.optimizer = optimizer   # its part of the time
        self.seconds, self.until, self.begun = milliseconds / 1e3, 0.0, set()
        if milliseconds <= 0:
            return
        layers = [layer for layer in model.modules()
                  if isinstance(layer, (nn.Linear, nn.MultiheadAttention))]
        inner = {id(part) for layer in layers for part in layer.modules() if part is not layer}
        layers = [layer for layer in layers if id(layer) not in inner]
        sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
        for layer, size in zip(layers, sizes):
            lasts = self.seconds * (1 - self.optimizer) * size / sum(sizes)
            layer.register_forward_pre_hook(lambda *_: self.wait_over())
            layer.register_forward_hook(lambda *_, lasts=lasts: self.run(lasts / 3))
            for parameter in layer.parameters():
                parameter.register_hook(
                    lambda _gradient, layer=layer, lasts=lasts: self.backward(layer, lasts * 2 / 3))

    def begin(self):
        """What comes next waits for something else than the layers before it, and begins now: an
        iteration, the optimizer."""
        self.until = time.perf_counter()
        self.begun.clear()

    def backward(self, layer, lasts):
        """A gradient of this layer is there: none of them leaves it before it ends."""
        self.run(0.0 if layer in self.begun else lasts)
        self.begun.add(layer)

    def wait_over(self):
        """Of a layer's forward, for its weights."""
        now = time.perf_counter()
        if now > self.until + self.LATE:
            self.until = now

    def step(self):
        self.run(self.seconds * self.optimizer)

    def run(self, lasts):
        self.until += lasts
        rest = self.until - time.perf_counter()
        if rest > 0:
            time.sleep(rest)


def make_optimizer(name, parameters, rate):
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.0 if name == "sgd" else 0.9,
                           nesterov=name == "nesterov")


def load_data(device):
    """The digits in a fixed order of their own, scaled to 0..1: (train images, labels, test
    images, labels)."""
    digits = load_digits()
    order = numpy.random.RandomState(1797).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target[order], dtype=torch.int64, device=device)
    return (images[:-TEST_IMAGES], labels[:-TEST_IMAGES],
            images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


def batches(count, batch, seed, epoch, rank, world):
    """This rank's batches of one epoch: every rank gets as many, and no image goes to two of
    them."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch))
    mine = order[rank:count // world * world:world]
    return [mine[start:start + batch] for start in range(0, len(mine) - batch + 1, batch)] or [mine]


def accuracy(model, images, labels, rank, world):
    """Share of right answers over all ranks, each of which looks at its part of the test images."""
    model.eval()
    with torch.no_grad():
        right = (model(images[rank::world]).argmax(dim=1) == labels[rank::world]).sum().to(
            torch.int64)
    model.train()
    dist.all_reduce(right)
    return right.item() / len(labels)


def checksum(model):
    """CRC of all parameters, byte by byte: equal replicas have equal checksums."""
    value = 0
    for parameter in model.parameters():
        value = zlib.crc32(parameter.detach().cpu().numpy().tobytes(), value)
    return value


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def train(options, device):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = make_model(options.model).to(device)
    paced = Device(model, options.device_ms, options.optimizer_share)
    elements = sum(parameter.numel() for parameter in model.parameters())
    # A size that is named, were it DDP's own, makes newer versions of PyTorch leave out the small
    # first bucket.
    buckets = {} if options.bucket_cap_mb is None else {"bucket_cap_mb": options.bucket_cap_mb}
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda"
                                  else None, **buckets)
    optimizer = make_optimizer(options.optimizer, ddp.parameters(), options.lr)
    train_images, train_labels, test_images, test_labels = load_data(device)
    ready = [0.0]  # when backward came to the latest gradient
    for parameter in model.parameters():
        parameter.register_hook(lambda _gradient: ready.__setitem__(0, time.perf_counter()))

    times, cpu, parts, losses, iteration = [], [], [], [], 0
    epochs, loss = 0, torch.zeros(())
    while epochs < options.epochs and (options.iterations is None
                                       or iteration < options.iterations):
        plan = batches(len(train_images), options.batch, options.seed, epochs, rank, world)
        if options.iterations is not None:
            plan = plan[:options.iterations - iteration]
        total = torch.zeros((), device=device)
        for indices in plan:
            start, before = time.perf_counter(), time.process_time()
            paced.begin()
            optimizer.zero_grad()
            loss = functional.cross_entropy(ddp(train_images[indices]), train_labels[indices])
            loss.backward()
            arrived = time.perf_counter()
            paced.begin()
            optimizer.step()
            paced.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            end = time.perf_counter()
            times.append((end - start) * 1e3)
            parts.append([round(at, 5) for at in (start, ready[0], arrived, end)])
            cpu.append((time.process_time() - before) * 1e3)  # of all threads
            total += loss.detach()
            iteration += 1
            if rank == 0 and iteration % options.print_every == 0:
                print(f"epoch {epochs + 1} iteration {iteration} loss {loss.item():.4f} "
                      f"{times[-1]:.0f} ms", flush=True)
        total /= len(plan)
        dist.all_reduce(total)
        losses.append(total.item() / world)
        epochs += 1
        if rank == 0:
            print(f"epoch {epochs} mean loss {losses[-1]:.6f}", flush=True)

    timed = times[WARMUP_ITERATIONS:] or times
    # "2119720, 4464640"; of the second iteration on
    sizes = ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
    right = accuracy(model, test_images, test_labels, rank, world)
    sums = [None] * world
    dist.all_gather_object(sums, checksum(model))
    return {
        "format": "ddp-job", "version": 1, "settings": vars(options), "world_size": world,
        "device": device.type,
        "torch": torch.__version__, "parameters": elements, "gradient_bytes": 4 * elements,
        "bucket_bytes": [int(size) for size in sizes.split(",") if size],
        "epochs": epochs, "iterations": iteration, "loss": losses[-1], "epoch_losses": losses,
        "test_accuracy": right, "replicas_equal": len(set(sums)) == 1, "checksum": f"{sums[0]:08x}",
        "iteration_ms": {"median": statistics.median(timed), "p10": quantile(timed, 0.1),
                         "p90": quantile(timed, 0.9), "n": len(timed),
                         "raw": [round(value, 2) for value in times]},
        "cpu_ms": {"raw": [round(value, 2) for value in cpu]},
        # Of every iteration: began, last gradient computed, backward over, ended, by the host's
        # clock.
        "iteration_s": parts,
    }


def update(model, optimizer, inputs, labels):
    """One iteration; its loss."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


def parse():
    parser = OneLineParser(description="Trains a small transformer on the digits data "
                                       "with DDP over NCCL.")
    parser.add_argument("--model", choices=MODELS, default="transformer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="stop after so many (default: whole epochs)")
    parser.add_argument("--batch", type=int, default=32, help="images per rank and iteration")
    parser.add_argument("--optimizer", choices=["sgd", "momentum", "nesterov", "adam", "adamw"],
                        default="adam")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bucket-cap-mb", type=float,
                        help="DDP's bucket size in MiB (default: DDP's own)")
    parser.add_argument("--device-ms", type=float, default=0.0, metavar="MS",
                        help="where there is no GPU: an iteration takes so "
                        "long, layer by layer, as if one computed it (if the cores do "
                        "not take longer)")
    parser.add_argument("--optimizer-share", type=float, default=1 / 8, metavar="PART",
                        help="--device-ms: the optimizer's part of it (1/8). It passes where the "
                        "job steps: a comparison with layers that step late needs 0")
    parser.add_argument("--print-every", type=int, default=5, metavar="N",
                        help="progress every N iterations")
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes the results there")
    options = parser.parse_args()
    for name in ("epochs", "iterations", "batch", "print_every"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if options.device_ms < 0 or (options.device_ms > 0 and torch.cuda.is_available()):
        parser.error("--device-ms " + ("must not be below 0" if options.device_ms < 0
                                       else "stands for a GPU, and this machine has one"))
    return options


def run(options, train_on):
    """Trains on this rank's device; rank 0 says and writes what came of it."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    dist.init_process_group("nccl")
    result = train_on(options, device)
    if dist.get_rank() == 0:
        times = result["iteration_ms"]
        right = (f"test accuracy {100 * result['test_accuracy']:.1f} %, "
                 if "test_accuracy" in result else "")
        print(f"loss {result['loss']:.6f}, {right}"
              f"iteration {times['median']:.0f} ms (median of {times['n']}), "
              f"replicas {'equal' if result['replicas_equal'] else 'DIFFERENT'} (checksum "
              f"{result['checksum']})", flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
    dist.destroy_process_group()
    if not result["replicas_equal"]:
        raise SystemExit("the replicas have different parameters")


if __name__ == "__main__":
    run(parse(), train)
