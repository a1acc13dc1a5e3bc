# SPDX-License-Identifier: Apache-2.0
"""Trainings that the companion is to judge, one after another, each on a process group of its own.

Each goes on until deft has said in SEEN, the log of rank 0, what becomes of it; then some
iterations more. OUT: rank 0 writes {"<kind>": {"said": [...], "iterations": n}} there. KINDS: a
comma list (default: all). PACE: seconds from one iteration to the next (0.01).
"""

import functools
import json
import os
import time

import companion_by_hand as hand
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from training_kinds import KINDS as SUMMED
from training_kinds import average, network, samples

PACE = float(os.environ.get("PACE", "0.01"))
PATIENCE = int(os.environ.get("PATIENCE", "1200"))   # iterations until deft has said something
AFTERWARDS = 4


def job(make_optimizer=lambda ps: torch.optim.Adam(ps, 1e-3), iterate=None, prepare=None,
        **options):
    """A kind: DDP, an optimizer, and what an iteration does with them."""
    def kind(group):
        model = DistributedDataParallel(network(), process_group=group, **options)
        optimizer, batches = make_optimizer(model.parameters()), samples(dist.get_rank())
        if prepare:
            prepare(model, optimizer)

        def loss():
            points, labels = next(batches)
            return cross_entropy(model(points), labels)

        def step(iteration):
            if iterate:
                iterate(iteration, model, optimizer, loss)
            else:
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
        return step, list(model.parameters())
    return kind


def between(look, zero=True):
    """An iteration that does something between backward and step."""
    def iterate(iteration, model, optimizer, loss):
        if zero:
            optimizer.zero_grad()
        loss().backward()
        look(iteration, model)
        optimizer.step()
    return iterate


def accumulates(_iteration, _model, optimizer, loss):
    optimizer.zero_grad()
    for _ in range(2):
        (loss() / 2).backward()
    optimizer.step()


def accumulates_apart(_iteration, model, optimizer, loss):
    optimizer.zero_grad()
    with model.no_sync():
        (loss() / 2).backward()
    (loss() / 2).backward()
    optimizer.step()


def sharpness_aware(_iteration, model, optimizer, loss):
    optimizer.zero_grad()
    loss().backward()
    with torch.no_grad():
        steps = [(p, p.grad * 0.05 / (p.grad.norm() + 1e-9)) for p in model.parameters()]
        for parameter, ascent in steps:
            parameter.add_(ascent)
    optimizer.zero_grad()
    loss().backward()
    with torch.no_grad():
        for parameter, ascent in steps:
            parameter.sub_(ascent)
    optimizer.step()


def with_closure(_iteration, _model, optimizer, loss):
    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value
    optimizer.step(closure)


def clears_alone(_iteration, model, optimizer, loss):
    for parameter in model.parameters():
        parameter.grad = None
    loss().backward()
    optimizer.step()


class Own(torch.optim.SGD):
    """A job's own optimizer."""


def in_two(parameters):
    return torch.optim.SGD(list(parameters)[:3], 0.05, momentum=0.9)


def with_more(parameters):
    return torch.optim.SGD([*parameters, nn.Parameter(torch.zeros(3))], 0.05, momentum=0.9)


def norm_of_all(_iteration, model):
    return sum(float(parameter.grad.norm()) for parameter in model.parameters())


def norm_of_buffers(_iteration, model):
    torch.stack([tensor.sum() for tensor in kept[id(model)]])


kept = {}


def keep_gradients(model, _optimizer):
    """Whoever has the gradients' tensors needs no `.grad` to read them."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    kept[id(model)] = [parameter.grad for parameter in model.parameters()]


def in_place(_iteration, model, optimizer, loss):
    optimizer.zero_grad(set_to_none=False)
    loss().backward()
    norm_of_buffers(0, model)
    optimizer.step()


def decays(_iteration, model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9999)


def clamps(apart):
    """A critic's weights; `.data` has no version that tells."""
    def iterate(_iteration, model, optimizer, loss):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                (parameter.data if apart else parameter).clamp_(-0.05, 0.05)
    return iterate


def replaces(_iteration, model, optimizer, loss):
    """As PyTorch's averagers do."""
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def looks_ahead(every):
    """Slow weights follow the fast ones now and then; through `.data`, as such optimizers do."""
    slow = {}

    def iterate(iteration, model, optimizer, loss):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        for number, parameter in enumerate(model.parameters()):
            kept_one = slow.setdefault(number, parameter.data.clone())
            if iteration % every == every - 1:
                kept_one += 0.5 * (parameter.data - kept_one)
                parameter.data.copy_(kept_one)
    return iterate


def changes_seldom(every):
    """Late enough that no look is due."""
    def iterate(iteration, model, optimizer, loss):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if iteration % every == every - 1:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.999)
    return iterate


def sharp_apart(_iteration, model, optimizer, loss):
    """As sharpness_aware, but the first pass is not summed, and `.data` tells nothing."""
    optimizer.zero_grad(set_to_none=True)
    with model.no_sync():
        loss().backward()
    saved = [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.05 * parameter.grad
    optimizer.zero_grad(set_to_none=True)
    loss().backward()
    for parameter, before in zip(model.parameters(), saved, strict=True):
        parameter.data = before
    optimizer.step()


def local_apart(_iteration, model, optimizer, loss):
    """A step of each rank's own, then one of all."""
    optimizer.zero_grad(set_to_none=True)
    with model.no_sync():
        loss().backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.05)
    optimizer.zero_grad(set_to_none=True)
    loss().backward()
    optimizer.step()


def with_temperature(look, state):
    """A learned temperature has an optimizer of its own, which steps first."""
    def iterate(_iteration, model, optimizer, loss):
        if not state:
            state.append(torch.nn.Parameter(torch.ones(1)))
            state.append(torch.optim.SGD(state, 0.01))
        optimizer.zero_grad()
        state[1].zero_grad()
        (loss() * state[0]).backward()
        state[1].step()
        look(0, model)
        optimizer.step()
    return iterate


def rolls_back(_iteration, model, optimizer, loss):
    """What an evaluation finds worse is taken back."""
    saved = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    with torch.no_grad():
        model.module(torch.zeros(4, 12))
    for parameter, before in zip(model.parameters(), saved, strict=True):
        parameter.data.copy_(before)


def evaluates(_iteration, model):
    """Another network, as a teacher or a metric has."""
    with torch.no_grad():
        kept.setdefault("another", network()).eval()(torch.zeros(4, 12))


def factored(parameters):
    """Rows and columns of a parameter share its state."""
    kind = getattr(torch.optim, "Adafactor", None) or torch.optim.SparseAdam
    return kind(list(parameters), 0.01)


def sparse(_iteration, model, optimizer, loss):
    """SparseAdam takes no other gradients."""
    optimizer.zero_grad()
    loss().backward()
    if isinstance(optimizer, torch.optim.SparseAdam):
        for parameter in model.parameters():
            parameter.grad = parameter.grad.to_sparse()
    optimizer.step()


def hook_on_step(_model, optimizer):
    """PyTorch 1.13 has no such hooks."""
    if hasattr(optimizer, "register_step_pre_hook"):
        optimizer.register_step_pre_hook(lambda *_: None)


def reads_later(before):
    """Plain until a plan is in force."""
    def iterate(_iteration, model, optimizer, loss):
        before.append(hand.plans())
        optimizer.zero_grad()
        loss().backward()
        if hand.plans() > before[0]:
            norm_of_all(0, model)
        optimizer.step()
    return iterate


def sums_later(group):
    """Plain until a plan is in force; then another sum of a bucket's size comes first."""
    model = DistributedDataParallel(network(), process_group=group)
    optimizer, batches = torch.optim.Adam(model.parameters(), 1e-3), samples(dist.get_rank())
    size = sum(parameter.numel() for parameter in model.parameters())
    before = hand.plans()

    def step(_):
        points, labels = next(batches)
        if average(torch.tensor([float(hand.plans() > before)]), group).item() == 1:
            other = torch.full((size,), float(dist.get_rank() + 1))
            dist.all_reduce(other, group=group)
            assert other.eq(3).all(), "it was late"
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
    return step, list(model.parameters())


def compiled(group):
    """The whole module, by a backend that needs no compiler."""
    model = torch.compile(DistributedDataParallel(network(), process_group=group), backend="eager")
    optimizer, batches = torch.optim.Adam(model.parameters(), 1e-3), samples(dist.get_rank())

    def step(_):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        optimizer.step()
    return step, list(model.parameters())


def late_hook(_iteration, model, optimizer, loss):
    if _iteration == 3:
        model.register_comm_hook(model.process_group, default_hooks.fp16_compress_hook)
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


@functools.lru_cache(None)
def beside():
    """A group for what deft is not to see."""
    return dist.new_group(backend="gloo")


class Bowl(nn.Module):
    """A loss of curvature 4 in each direction, with noise, and gradients that take long to sum."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.ones(4000))
        self.ballast = nn.Parameter(torch.zeros(4_000_000))

    def forward(self, points):
        place = self.place + 0 * self.ballast.sum()   # whose gradient comes last
        return 2 * (place - points).square().sum()


def bowl(rate, later=None):
    """`later`: the rate with a plan in force."""
    def kind(group):
        model, before = DistributedDataParallel(Bowl(), process_group=group), hand.plans()
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
        draw = torch.Generator().manual_seed(50 + dist.get_rank())

        def step(_):
            if later is not None and average(torch.tensor([float(hand.plans() > before)]),
                                             beside()).item() == 1:
                optimizer.param_groups[0]["lr"] = later
            optimizer.zero_grad()
            model(torch.randn(4000, generator=draw)).backward()
            optimizer.step()
        return step, list(model.parameters())
    return kind


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


KINDS = {
    "plain": job(),
    "plain_views": job(gradient_as_bucket_view=True),
    "plain_static": job(static_graph=True),
    "plain_cleared": job(iterate=clears_alone),
    "accumulated": job(iterate=accumulates_apart),
    "unused": job(find_unused_parameters=True),
    "compiled": compiled,
    "steep": bowl(0.1),
    "gentle": bowl(0.005),
    "steeper": bowl(0.005, later=0.1),
    "twice": job(iterate=accumulates),
    "sharp": job(momentum, sharpness_aware),
    "closure": job(iterate=with_closure),
    "own_optimizer": job(lambda ps: Own(ps, 0.05)),
    "factored": job(factored, sparse),
    "step_hook": job(prepare=hook_on_step),
    "by_hand_in_part": hand.by_hand_in_part,
    "by_hand_twice": hand.by_hand_twice,
    "by_hand_anew": hand.by_hand_and(lambda i, gradient, _: gradient.mul_(0.5 + 0.01 * (i % 5))),
    "by_hand_tensor": hand.by_hand_and(lambda i, gradient, _: gradient.mul_(torch.full((), 0.5))),
    "by_hand_later": hand.by_hand_and(hand.changes_later([])),
    "by_hand_into": hand.by_hand_and(
        lambda _, gradient, __: torch.zeros_like(gradient).mul_(gradient)),
    "by_hand_scaled_first": hand.by_hand_scaled_first,
    "by_hand_constant": hand.by_hand_and(lambda _, gradient, __: gradient.mul_(0.25)),
    "by_hand_sharp": hand.by_hand(hand.sharpness_aware_alone),
    "by_hand_local": hand.by_hand(hand.goes_on_alone),
    "by_hand_compressed": hand.by_hand(hand.compresses({})),
    "skips": hand.by_hand(hand.skips_once(False, {})),
    "skips_apart": hand.by_hand(hand.skips_once(True, {})),
    "sharp_apart": job(iterate=sharp_apart),
    "local_apart": job(iterate=local_apart),
    "temperature": job(iterate=with_temperature(lambda *_: None, [])),
    "temperature_read": job(iterate=with_temperature(norm_of_all, [])),
    "temperature_decayed": job(iterate=with_temperature(decays, [])),
    "rolled_back": job(iterate=rolls_back),
    "evaluated": job(iterate=between(evaluates)),
    "ahead": job(iterate=looks_ahead(6)),
    "seldom": job(iterate=changes_seldom(45)),
    "reads_later": job(iterate=reads_later([])),
    "sums_later": sums_later,
    # Of more iterations a step makes as many as a rank's own loss wants, and the ranks' sums part.
    "quasi_newton": job(lambda ps: torch.optim.LBFGS(ps, 0.05, max_iter=1), with_closure),
    "a_part": job(in_two),
    "and_more": job(with_more),
    "read": job(iterate=between(norm_of_all)),
    "read_apart": job(iterate=in_place, prepare=keep_gradients),
    "decayed": job(iterate=between(decays)),
    "clamped": job(iterate=clamps(False)),
    "clamped_data": job(iterate=clamps(True)),
    "replaced": job(iterate=replaces),
    "never_cleared": job(iterate=between(lambda *_: None, zero=False)),
    "hooked": job(prepare=lambda model, _: model.register_comm_hook(
        None, default_hooks.fp16_compress_hook)),
    "hooked_late": job(iterate=late_hook),
    "flat": hand.by_one_sum,
    **{name: SUMMED[name] for name in ("heavy_ball", "by_hand", "averaged", "averager", "divided",
                                       "contrasted", "in_turns", "forked")},
    "low_rank": job(prepare=lambda model, _: model.register_comm_hook(
        # Of which the factors are 1 KiB and more.
        powerSGD_hook.PowerSGDState(model.process_group, matrix_approximation_rank=8,
                                    start_powerSGD_iter=4), powerSGD_hook.powerSGD_hook)),
    # Trainers: clipping, evaluations, checkpoints that are read again.
    "trainer": SUMMED["accumulated"],
    # A plan may come before it stops to look at its loss.
    "stopped_early": SUMMED["evaluated"],
}


# Of these a plan is chosen by what is measured, so nothing else is summed.
TIMED = ("steep", "gentle", "steeper")
ENDS = ("the plan has ended", "the plan in force ends")
SAYS = ("does what exact does", "plan in force", "a plan is not taken", *ENDS)
# Of these the end of their plan is awaited.
ENDING = ("reads_later", "steeper", "sums_later", "seldom", "skips", "skips_apart", "by_hand_later",
          "stopped_early")


def said(since, ending=False):
    """What deft has said of its plans, from a place of the log on; and how long the log is."""
    with open(os.environ["SEEN"], encoding="utf-8", errors="replace") as file:
        file.seek(since)
        lines = file.read().splitlines()
        told = [line.split("] ", 1)[-1] for line in lines
                if any(words in line for words in SAYS)]
        if ending and not any(words in line for line in told for words in ENDS):
            told = []
        return told, file.tell()


def run(name):
    torch.manual_seed(3)
    group = dist.new_group()
    tells = beside() if name in TIMED else group
    step, _ = KINDS[name](group)
    start = said(0)[1] if dist.get_rank() == 0 else 0
    left, count = None, 0
    while count < PATIENCE and left != 0:
        time.sleep(PACE)
        step(count)
        count += 1
        if left is None:
            heard = dist.get_rank() == 0 and bool(said(start, name in ENDING)[0])
            if average(torch.tensor([float(heard)]), tells).item() > 0:
                left = AFTERWARDS
        else:
            left -= 1
    lines = said(start)[0] if dist.get_rank() == 0 else []
    dist.destroy_process_group(group)
    return {"said": lines, "iterations": count}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("nccl")
    results = {kind: run(kind) for kind in os.environ.get("KINDS", ",".join(KINDS)).split(",")}
    if dist.get_rank() == 0:
        with open(os.environ["OUT"], "w", encoding="utf-8") as file:
            json.dump(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
