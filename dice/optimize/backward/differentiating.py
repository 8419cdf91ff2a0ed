"""In a jailed process of its own: derives the backward of regions, and proves it on values.

Regions are data of a stranger's module, so that PyTorch runs them nowhere else. A region whose backward cannot be
derived, or is not right, has a reason instead.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch

from dice.optimize.backward.derive import NotDerived, backward_of
from dice.optimize.backward.proof import draw, prove
from dice.optimize.graph import Graph
from dice.optimize.trace.messages import Differentiate, Differentiated, Stage
from dice.verify.execution.running import Device
from dice.verify.ipc.channel import Channel


def main(link: socket.socket) -> None:
    channel = Channel(link)
    order = channel.expect(Differentiate)
    device = Device(order.backend)
    device.prepare(order.threads)
    backwards = []
    regions: Any = order.regions
    for number, region in enumerate(regions, 1):
        channel.send(Stage(f"differentiating region {number} of {len(regions)}"))
        backwards.append(differentiated(region, order.seed, torch.device("cpu" if device.emulated else "cuda")))
    channel.send(Differentiated(backwards))
    os._exit(0)


def differentiated(region: Any, seed: int, device: torch.device) -> object:
    """One region's answer. `region`: as `ask.order_for` has it."""
    graph = Graph.from_json(region["graph"])
    sources = region["sources"]
    try:
        backward = backward_of(graph, sources, region["wanted"], region["read"])
        prove(graph, sources, backward, draw(region["source"], region["paths"], seed), device)
    except NotDerived as error:
        return str(error)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        return f"its gradients cannot be checked: {type(error).__name__}: {str(error)[:200]}"
    return backward.to_json()
