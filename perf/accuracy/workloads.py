# SPDX-License-Identifier: Apache-2.0
"""Models and data of sweep.py: what a training is, apart from how its gradients are delivered.

Images: scikit-learn's digits, and Debian's dataset-fashion-mnist. Text: Debian's bible-kjv, of
which a model names the next character. `./dev install dataset-fashion-mnist bible-kjv
bible-kjv-text` installs both.
"""

import functools
import gzip
import shutil
import subprocess

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from ..jobs import ddp

FASHION = "/usr/share/datasets/fashion-mnist"
PACKAGES = "dataset-fashion-mnist bible-kjv bible-kjv-text"
CONTEXT = 64           # characters
CHAPTERS = "Genesis1:1-Revelation22:21"
TESTED = {"fashion": 1000, "text": 64}   # images, pieces of text


class Missing(RuntimeError):
    """A package is not installed."""


def _idx(path, head):
    try:
        with gzip.open(path) as file:
            return torch.frombuffer(bytearray(file.read()[head:]), dtype=torch.uint8)
    except FileNotFoundError as error:
        raise Missing(f"{error.filename} is missing; remedy: ./dev install {PACKAGES}") from None


@functools.lru_cache(None)
def _fashion():
    def images(name):
        pixels = _idx(f"{FASHION}/{name}-images-idx3-ubyte.gz", 16)
        return (pixels.view(-1, 1, 28, 28).float() / 255 - 0.286) / 0.353

    def labels(name):
        return _idx(f"{FASHION}/{name}-labels-idx1-ubyte.gz", 8).long()
    tested = TESTED["fashion"]
    return images("train"), labels("train"), images("t10k")[:tested], labels("t10k")[:tested]


@functools.lru_cache(None)
def _digits():
    return ddp.load_data(torch.device("cpu"))


@functools.lru_cache(None)
def _text():
    """(training pieces, their next characters, test pieces, theirs). The last book is tested."""
    if shutil.which("bible") is None:
        raise Missing(f"the command bible is missing; remedy: ./dev install {PACKAGES}")
    said = subprocess.run(["bible", "-f", CHAPTERS], capture_output=True, text=True, check=True)
    verses = [line.partition(" ")[2] for line in said.stdout.splitlines()]
    kinds = {letter: number for number, letter in enumerate(sorted(set("\n".join(verses))))}
    codes = torch.tensor([kinds[letter] for letter in "\n".join(verses)])
    pieces = codes[:len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    train, test = pieces[:-2000], pieces[-2000::2000 // TESTED["text"]]
    return train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:]


class Residual(nn.Module):
    """Two convolutions, and what comes in added to them (arXiv 1512.03385, option A)."""

    def __init__(self, into, out, stride):
        super().__init__()
        self.stride, self.more = stride, out - into
        self.layers = nn.Sequential(nn.Conv2d(into, out, 3, stride, 1, bias=False),
                                    nn.BatchNorm2d(out), nn.ReLU(),
                                    nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, images):
        around = images[:, :, ::self.stride, ::self.stride]
        return torch.relu(self.layers(images) + pad(around, (0, 0, 0, 0, 0, self.more)))


def resnet20(width=8):
    layers = [nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    into = width
    for stride, out in ((1, width), (2, 2 * width), (2, 4 * width)):
        for block in range(3):
            layers.append(Residual(into, out, 1 if block else stride))
            into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 10))


def small_cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2, 2),
                         nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(),
                         nn.Linear(64, 10))


class Writer(nn.Module):
    """A transformer that names the next character."""

    def __init__(self, width=96, layers=4):
        super().__init__()
        kinds = int(_text()[0].max()) + 1
        self.embed = nn.Embedding(kinds, width)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)
        self.register_buffer("mask", torch.triu(torch.full((CONTEXT, CONTEXT), float("-inf")), 1),
                             persistent=False)

    def forward(self, characters):
        hidden = self.encoder(self.embed(characters) + self.position, mask=self.mask)
        return self.head(self.norm(hidden)).transpose(1, 2)   # as cross_entropy() wants it


class Workload:
    def __init__(self, make, data, iterations, rates):
        """`iterations` of a training at the pace of plain. `rates`: the largest that plain bears,
        by optimizer and samples a rank."""
        self.make, self.data, self.iterations, self.rates = make, data, iterations, rates


# The largest that were tried and are well for plain: the digits' by perf/results/price.md (AdamW's
# are Adam's, and SGD's is that of run.py). What has none yet is left out; `sweep.py --find-rates`
# looks for them.
DIGITS = {("sgd", 32): 0.5, ("momentum", 32): 0.2, ("nesterov", 32): 0.2, ("adam", 32): 0.008,
          ("adamw", 32): 0.008}
WORKLOADS = {
    "digits": Workload(functools.partial(ddp.make_model, "tiny-mlp"), _digits, 240, DIGITS),
    "cnn": Workload(small_cnn, _fashion, 240, {}),
    "resnet20": Workload(resnet20, _fashion, 160, {}),
    "text": Workload(Writer, _text, 160, {}),
}


def sample_batches(count, batch, seed, iteration, ranks):
    """Each rank's samples of one iteration, none twice in it."""
    draw = torch.Generator().manual_seed(100003 * seed + iteration)
    chosen = (torch.randperm(count, generator=draw) if batch * ranks > count // 8 else
              torch.randint(count, (batch * ranks,), generator=draw))
    return chosen[:batch * ranks].chunk(ranks)


def test_loss(model, inputs, labels):
    """(loss, share of right answers) of what was not trained on."""
    model.eval()
    with torch.no_grad():
        losses, right = [], []
        for part, wanted in zip(inputs.split(500), labels.split(500)):
            answers = model(part)
            losses.append(cross_entropy(answers, wanted, reduction="none").flatten())
            right.append((answers.argmax(1) == wanted).float().flatten())
    model.train()
    return torch.cat(losses).mean().item(), torch.cat(right).mean().item()
