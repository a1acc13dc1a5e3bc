# SPDX-License-Identifier: Apache-2.0
"""Trainings of companion_kinds.py that sum their gradients without DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from training_kinds import network, samples


def plans():
    """That have come into force in this process so far."""
    import deft
    return deft.stats()["switched"]


def begin(group, make_optimizer=lambda parameters: torch.optim.Adam(parameters, 1e-3)):
    """(model, the same on all ranks; its optimizer; this rank's batches)."""
    model = network()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0, group=group)
    return model, make_optimizer(model.parameters()), samples(dist.get_rank())


def by_hand_and(scale):
    """By hand; then `scale` is done to each gradient."""
    def kind(group):
        model, optimizer, batches = begin(group)

        def step(iteration):
            points, labels = next(batches)
            optimizer.zero_grad()
            cross_entropy(model(points), labels).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)
                scale(iteration, parameter.grad, group)
            optimizer.step()
        return step, list(model.parameters())
    return kind


def by_one_sum(group):
    """All gradients by hand, in one buffer."""
    model, optimizer, batches = begin(group)
    parameters = list(model.parameters())

    def step(_):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        dist.all_reduce(flat, group=group)
        at = 0
        for parameter in parameters:
            parameter.grad.copy_(flat[at:at + parameter.numel()].view_as(parameter) / 2)
            at += parameter.numel()
        optimizer.step()
    return step, parameters


def by_hand_in_part(group):
    """By hand, but for the biases."""
    model, optimizer, batches = begin(group)

    def step(_):
        points, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(points), labels).backward()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
    return step, list(model.parameters())


def by_hand_twice(group):
    """By hand, behind two backward passes."""
    model, optimizer, batches = begin(group)

    def step(_):
        optimizer.zero_grad()
        for _ in range(2):
            points, labels = next(batches)
            (cross_entropy(model(points), labels) / 2).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad.data, group=group)
            parameter.grad.data.div_(dist.get_world_size())
        optimizer.step()
    return step, list(model.parameters())


def by_hand(iterate, scale=True):
    """By hand: `iterate` leaves the gradients, of a loss that it asks for, that are then summed; or
    it returns what is summed in their place."""
    def kind(group):
        model, optimizer, batches = begin(
            group, lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9))
        parameters = list(model.parameters())

        def backward():
            points, labels = next(batches)
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(points), labels).backward()

        def step(_):
            others = iterate(backward, parameters)
            for tensor in others or [parameter.grad for parameter in parameters]:
                dist.all_reduce(tensor, group=group)
            for parameter, tensor in zip(parameters, others or (), strict=False):
                parameter.grad = tensor
            for parameter in parameters if scale else ():
                parameter.grad /= dist.get_world_size()
            optimizer.step()
        return step, parameters
    return kind


def sharpness_aware_alone(backward, parameters):
    """The first of two passes is summed by nobody."""
    backward()
    saved = [parameter.data for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data + 0.05 * parameter.grad
    backward()
    for parameter, before in zip(parameters, saved, strict=True):
        parameter.data = before


def goes_on_alone(backward, parameters):
    """Steps of its own, whose sum takes the place of a gradient (local SGD, DiLoCo)."""
    anchor = [parameter.detach().clone() for parameter in parameters]
    for _ in range(2):
        backward()
        for parameter in parameters:
            parameter.data -= 0.05 * parameter.grad.data
    for parameter, before in zip(parameters, anchor, strict=True):
        parameter.grad.data.copy_(before - parameter.data)
        parameter.data.copy_(before)


def compresses(errors):
    def iterate(backward, parameters):
        backward()
        for parameter in parameters:
            wanted = parameter.grad + errors.get(parameter, 0)
            parameter.grad = wanted.sign() * wanted.abs().mean()
            errors[parameter] = wanted - parameter.grad
    return iterate


def by_hand_scaled_first(group):
    """Divided before it is summed."""
    def iterate(backward, parameters):
        backward()
        for parameter in parameters:
            parameter.grad /= dist.get_world_size()
    return by_hand(iterate, False)(group)


def skips_once(apart, state):
    """When a plan is in force rank 0 has no finite loss once, and sums zeros: as gradients, or
    apart."""
    def iterate(backward, parameters):
        state.setdefault("before", plans())
        if dist.get_rank() == 0 and plans() > state["before"] and not state.get("skipped"):
            state["skipped"] = True
            zeros = [torch.zeros_like(parameter) for parameter in parameters]
            if apart:
                return zeros
            for parameter, zero in zip(parameters, zeros, strict=True):
                parameter.grad = zero
        else:
            backward()
        return None
    return iterate


def changes_later(before):
    """Plain until a plan is in force, and no look is due; then each gradient is changed behind its
    sum."""
    def scale(iteration, gradient, _group):
        before.append(plans())
        if plans() > before[0] and iteration > 40:
            gradient.mul_(0.9)
    return scale
