# SPDX-License-Identifier: Apache-2.0
"""What the companion tells of the losses of made-up iterations, without a job. Writes to standard
output {"<case>": [[iteration, asked, loss, norm, rate], ...]}; "nan" and "inf" as text."""

import json
import os
import sys

import torch

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "companion"))

from deft_companion import library, losses  # noqa: E402

told = []


class Library:
    """As the preloaded one, as far as it is asked."""

    proof, wants = True, library.PROOF

    @staticmethod
    def watch_training(_module):
        return losses.LOSS | losses.NORM

    @staticmethod
    def note_training(_module, *what):
        told.append([value if value - value == 0 else str(value) for value in what])

    @staticmethod
    def companion_end(why):
        raise SystemExit(why.decode())


class Module:
    watched, by_hand, number, all_sets, sets = True, False, 1, 0, 1

    def __init__(self):
        self.parameter = torch.nn.Parameter(torch.zeros(2))
        self.parameter.grad = torch.tensor([3.0, 4.0])

    def live(self):
        return [self.parameter]


class Event:
    """One that says when the test wants it to; and nobody may wait for it."""

    come = False

    def record(self, stream):
        assert stream == "stream"

    def query(self):
        return Event.come


class OnGpu:
    """A number on a device of which there is none here."""

    device = torch.device("cuda", 0)

    def __init__(self, value):
        self.value = value

    def detach(self):
        return torch.tensor(self.value)


def iterate(watch, module, *passes):
    for tensors in passes:
        watch.backward_begins([module], tensors)
        watch.gradients_are_there([module])
    module.all_sets += 1
    watch.iteration_ends(module, [{"lr": 0.1}, {"lr": 0.2}, {"lr": torch.tensor(9.0)}])


def case(*iterations):
    told.clear()
    watch, module = losses.Losses(), Module()
    for passes in iterations:
        iterate(watch, module, *passes)
    return list(told)


def loss(value, **options):
    return torch.tensor(value, requires_grad=True, **options)


def on_a_gpu():
    """Told when it has come, in its order; what is not told for long is left out."""
    make, torch.cuda.Event = torch.empty, Event
    torch.empty = lambda *size, pin_memory, **options: make(*size, **options)
    torch.cuda.current_stream = lambda _device: "stream"
    losses._scalar, losses._norm = (lambda tensors: tensors), (lambda _module: OnGpu(5.0))
    told.clear()
    watch, module = losses.Losses(), Module()
    for number in range(100):
        iterate(watch, module, OnGpu(float(number)))
    before, Event.come = len(told), True
    for number in range(100, 200):
        iterate(watch, module, OnGpu(float(number)))
    torch.empty = make
    return {"before": before, "told": [[what[0], what[2], what[3]] for what in told],
            "free": [len(pinned.free) for pinned in watch._pinned.values()]}


def main():
    library._found.append(Library())
    results = {
        "one": case([loss(2.0)], [loss([1.5])], [[loss(1.0)]]),
        "accumulated": case(*[[loss(0.5), loss(0.25)]] * 2, [loss(0.7)], *[[loss(0.5), loss(0.25)]]
                            * 2),
        "no_number": case([loss([1.0, 2.0])], [[loss(1.0), loss(2.0)]], [None]),
        "of_a_kind": case([loss(1.0).as_subclass(type("Own", (torch.Tensor,), {}))]),
        "half": case([loss(0.5, dtype=torch.bfloat16)]),
        "not_finite": case([loss(float("nan"))], [loss(float("inf"))]),
        "on_a_gpu": on_a_gpu(),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
