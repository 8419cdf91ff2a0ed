"""What kernel files do with CUDA devices in Python works on CPU tensors under emulation."""

from __future__ import annotations

import subprocess
import sys

import torch

from dice.verify.execution.inputs import vary
from dice.verify.ipc.messages import Step
from tests.conftest import PATIENCE_S, ROOT

SCRIPT = """
import warnings
import torch, torch.nn as nn
from dice.verify.execution import fake_cuda
fake_cuda.install()
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
with fake_cuda.active(True):
    x = torch.ones(2, 3)
    assert x.is_cuda and x.device.type == "cuda" and x.cuda() is x and x.get_device() == 0
    assert x.to("cuda") is x and x.to(device) is x
    assert x.to(device="cuda:0", dtype=torch.float16).dtype == torch.float16
    y = torch.zeros(2, 3, device="cuda") + torch.empty_like(x, device=device).fill_(1)
    y = y + torch.arange(3, device=x.device)
    assert y.sum() == 12
    moved = [y.to("cpu"), y.to(device="cpu"), y.to(torch.device("cpu"), torch.float32, False, True)]
    for host in (y.cpu(), *moved):
        assert host.sum() == 12
        host.zero_()
        assert y.sum() == 12
    assert torch.device("cuda", 0) == torch.device("cuda:0") == x.device
    assert torch.zeros(2, device=torch.device("cuda", 0)).sum() == 0
    layer = nn.Linear(3, 4, device="cuda").cuda().to(device)
    assert layer(x).shape == (2, 4) and layer.weight.is_cuda
    assert torch.tensor([1.0], device="cuda:0").device == x.device
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
        torch.cuda.current_stream().synchronize()
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda.synchronize()
    torch.manual_seed(1)
    assert torch.cuda.get_device_properties(0).multi_processor_count > 0
    warnings.simplefilter("error")  # of cuDNN, which has no part in this
    recurrent = nn.LSTM(3, 4).cuda()
    assert recurrent(torch.ones(2, 1, 3))[0].shape == (2, 1, 4)
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 2, 3), torch.tensor([2, 1]).cpu())
    assert packed.data.is_cuda and packed.batch_sizes.device.type == "cpu"
    assert nn.utils.rnn.pad_packed_sequence(recurrent(packed)[0])[0].shape == (2, 2, 4)
real = torch.ones(1)
assert not real.is_cuda and real.device.type == "cpu"
import torch._dynamo
print("done")
"""


def test_cuda_in_python() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip() == "done", done.stderr


def test_varied_inputs_change_measurements_only() -> None:
    torch.manual_seed(0)
    rand, labels = torch.rand(8, 16), torch.randint(0, 5, (8,))
    triangle, mask = torch.tril(torch.rand(8, 8)), (torch.rand(8, 8) > 0.5).float()
    distribution = torch.softmax(torch.randn(4, 6), dim=-1)
    signed = torch.randn(8, 16)
    values = [rand, labels, triangle, mask, distribution, signed, 3]
    centred, scaled = vary(values, Step("", "centred")), vary(values, Step("", "scaled"))
    assert (centred[0] < 0).any() and abs(float(centred[0].mean())) < 0.01
    assert torch.equal(centred[2] == 0, triangle == 0) and (centred[2] < 0).any()
    assert torch.equal(scaled[0], rand * 3) and torch.equal(scaled[5], signed * 3)
    for index in (1, 3, 4):
        assert torch.equal(centred[index], values[index]) and torch.equal(scaled[index], values[index])
    assert torch.equal(centred[5], signed) and centred[6] == 3
    assert all(a is b for a, b in zip(vary(values, Step("", "given")), values, strict=True))
