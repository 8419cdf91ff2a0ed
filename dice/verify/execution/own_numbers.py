"""Inputs that hold the numbers of a candidate's own text, where the problem may draw them.

A kernel that does something else where a value is 0.7312, or lies between that and 0.7313, where the last bits of one
are 0x2f1, or where a code is 777, meets such a value once in thousands of draws, if ever. But its text says it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dice.verify.execution import seldom
from dice.verify.execution.changes import is_formed
from dice.verify.execution.steady import is_distinct

MOST_MASKED = 16  # pairs of a mask and what is left of it
SPARSE = 8  # times as many numbers as there are elements are few enough to be different by a rule
MOST_BITS = 20  # of a mask, of the 23 that follow a float32's exponent


def in_measured(tensor: torch.Tensor, numbers: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Measured values of which some are numbers between the least and the most of them, or next to such numbers, or
    end in the bits that one of the numbers masks and another one is."""
    if tensor.is_complex() or is_formed(tensor):
        return tensor
    least, most = (float(end) for end in tensor.aminmax())
    signed = torch.tensor([sign * one for one in numbers for sign in (1.0, -1.0)], dtype=torch.float64)
    inside = signed[(signed > least) & (signed < most)].to(tensor.dtype)
    ends = (torch.full_like(inside, end) for end in (-torch.inf, torch.inf))
    near = torch.cat([inside, *(torch.nextafter(inside, end) for end in ends)]) if len(inside) else inside
    if tensor.dtype == torch.float32:
        near = torch.cat([near, _masked(tensor, numbers, generator)])
    found = sorted(set(near.double().tolist()))
    return seldom.meeting(tensor, found, generator) if found else tensor


def in_coded(tensor: torch.Tensor, numbers: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Whole numbers of which some are numbers between the least and the most of them, each once where all are different
    by chance. Not where they are a permutation, or in order."""
    if not seldom.is_whole(tensor) or seldom.is_in_order(tensor) or seldom.is_bound(tensor):
        return tensor
    if is_formed(tensor[tensor != 0]):
        return tensor
    least, most = (int(end) for end in tensor.aminmax())
    distinct = is_distinct(tensor)
    if distinct and most - least < SPARSE * tensor.numel():
        return tensor
    found = [one for one in numbers if one == int(one) and least <= one <= most]
    return seldom.meeting(tensor, found, generator, 0.0 if distinct else seldom.MET) if found else tensor


def _masked(tensor: torch.Tensor, numbers: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Values of the tensor whose last bits are what a kernel may ask for."""
    whole = [int(one) for one in numbers if one == int(one) and one < 1 << MOST_BITS]
    masks = [one for one in whole if one > 2 and not one & (one + 1)]
    pairs = [(mask, rest) for mask in masks for rest in whole if rest < mask][:MOST_MASKED]
    places = torch.randint(tensor.numel(), (len(pairs),), generator=generator)
    bits = tensor.detach().cpu().reshape(-1)[places].view(torch.int32)
    for index, (mask, rest) in enumerate(pairs):
        bits[index] = (bits[index] & ~mask) | rest
    return bits.view(torch.float32)
