"""The second set of parameters: other than the first, and other where no seed changes anything."""

from __future__ import annotations

import problem_texts as texts
import torch

from dice.verify.ipc.messages import Step
from dice.verify.reference.judge import judge
from dice.verify.reference.parameters import borne
from dice.verify.reference.trial import State
from tests.verify.reference.conftest import SECRET, Make, draw


def test_fresh_parameters_reveal_a_kernel_without_weights_and_biases(make: Make) -> None:
    """GroupNorm starts with weights of one and biases of nothing: leaving them out passes on every input."""
    reference = make(texts.GROUP_NORM)
    first = reference.plan(SECRET, 5)[0]
    assert first.fresh
    for loadable, equal in ((False, True), (True, False)):
        trial = draw(reference, first, loadable)
        plain = torch.nn.functional.group_norm(trial.inputs[0], 2)
        assert judge(reference, trial, plain).equal is equal
    assert judge(reference, draw(reference), torch.nn.functional.group_norm(draw(reference).inputs[0], 2)).equal


FIXED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.identity = torch.nn.Parameter(torch.eye(8))
        self.rising = torch.nn.Parameter(torch.linspace(0, 700, 8))
        self.table = torch.nn.Parameter(torch.linspace(0, 1, 8), requires_grad=False)
        self.under_root = torch.nn.Parameter(torch.zeros(8))
        self.random = torch.nn.Parameter(torch.rand(8))
        self.rows = torch.nn.Parameter(torch.rand(6, 8))
        self.gain = torch.nn.Parameter(self.rows.detach().norm(dim=0))
        self.copied = torch.nn.Parameter(self.rows.detach().clone())
        self.register_buffer("ones", torch.ones(8))
        self.register_buffer("places", torch.arange(8.0))
        self.register_buffer("falling", torch.linspace(1, -1, 8))
        self.register_buffer("waves", torch.arange(8.0).sin())
        self.register_buffer("mask", torch.ones(8, 8).tril())
        self.register_buffer("derived", torch.linspace(1, 2, 8), persistent=False)

    def forward(self, x):
        moved = (x @ (self.identity * self.mask) + self.rising) * self.ones + self.under_root.sqrt()
        moved = moved + self.gain + self.rows.sum(0) + self.copied.sum(0)
        return moved + self.random + self.places + self.table + self.falling + self.waves + self.derived

def get_inputs():
    return [torch.rand(4, 8)]

def get_init_inputs():
    return []
"""


def test_what_no_seed_changes_is_varied_as_far_as_the_reference_bears_it(make: Make) -> None:
    reference = make(FIXED)
    reference.plan(SECRET, 5)
    assert reference.fresh_states is not None
    plain, varied = reference.fresh_states
    same = {name for name in plain if torch.equal(plain[name], varied[name])}
    assert same == {"mask"}
    for name in ("random", "rows"):  # all above zero, and near to another seed's
        assert bool((varied[name] < 0).any()) and bool(((varied[name].abs() / plain[name] - 1).abs() <= 0.26).all())
    assert bool((varied["places"].diff() > 0).all()) and bool((varied["falling"].diff() < 0).all())
    assert float(varied["under_root"].min()) >= 0
    assert 10 < float((varied["rising"] - plain["rising"]).abs().max()) < 700


FORMED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = torch.nn.Parameter(torch.linalg.qr(torch.randn(8, 8))[0])
        half = torch.randn(8, 8)
        self.even = torch.nn.Parameter(half + half.t())
        self.knots = torch.nn.Parameter(torch.randn(8).sort().values)
        self.register_buffer("gain", torch.tensor(1.0))
        self.again = torch.nn.Linear(8, 8, bias=False)
        self.again.weight = self.turn

    def forward(self, x):
        return torch.tanh(self.again(x) @ self.turn @ self.even) * self.gain + torch.bucketize(x, self.knots)

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""


def test_parameters_lose_a_form_that_every_seed_gives(make: Make) -> None:
    """All but an order, which whoever looks a place up in them may rely on."""
    reference = make(FORMED)
    reference.plan(SECRET, 5)
    assert reference.fresh_states is not None
    plain, varied = reference.fresh_states
    turn, even = varied["turn"], varied["even"]
    assert not torch.allclose(turn @ turn.t(), torch.eye(8), atol=1e-2) and not torch.allclose(
        even, even.t(), atol=1e-2
    )
    assert float((turn - plain["turn"]).abs().max()) < 0.3 * float(plain["turn"].std())
    assert torch.equal(turn, varied["again.weight"])
    assert torch.equal(varied["knots"], plain["knots"]) and float(varied["gain"]) != 1.0


BEGINNING = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 8)
        self.down = torch.nn.Linear(8, 8)
        self.down.weight = self.up.weight
        self.knots = torch.nn.Parameter(torch.randn(8).sort().values)
        self.norm = torch.nn.BatchNorm1d(8).eval()
        self.register_buffer("on", torch.zeros((), dtype=torch.uint8))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.long))
        self.register_buffer("kept", torch.ones(8, 8, dtype=torch.bool))
        self.register_buffer("places", torch.arange(8))

    def forward(self, x):
        self.calls += 1
        y = self.norm(self.down(self.up(x)) @ self.kept.float())[:, self.places]
        return torch.where(self.on.bool() | (self.calls > 100), y, -y) + (x > self.knots)

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""


def test_flags_counters_and_full_masks_become_others_and_parameters_large(make: Make) -> None:
    reference = make(BEGINNING)
    first, second = reference.plan(SECRET, 5)[:2]
    assert first.fresh and second.fresh and (first.stretched, second.stretched) == (False, True)
    assert reference.fresh_states is not None and reference.stretched_state is not None
    plain, varied = reference.fresh_states
    large = reference.stretched_state
    assert int(varied["on"]) == 1 and int(varied["calls"]) > 32 and int(large["calls"]) > 100_000
    assert 0 < int(varied["kept"].sum()) < 64
    assert not bool((varied["knots"].diff() > 0).all())
    for name in ("places", "norm.num_batches_tracked"):  # an order, and what kernels need not have
        assert torch.equal(varied[name], plain[name]) and torch.equal(large[name], plain[name])
    for name in ("up.weight", "down.weight"):  # but for the first row, by which one may know a parameter
        assert torch.equal(large[name][1:], 8 * varied[name][1:]) and torch.equal(large[name][0], varied[name][0])
    grown = large["down.bias"] / varied["down.bias"]  # of a vector of small numbers the largest is 8 times 3/4
    assert torch.allclose(grown, grown[0]) and torch.isclose(large["down.bias"].abs().max(), torch.tensor(6.0))
    trial = draw(reference, second)
    assert trial.state is large and draw(reference, second, loadable=False).state is plain


def test_a_place_that_cannot_go_on_as_a_counter_does_is_another(make: Make) -> None:
    reference = make(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        '        self.register_buffer("place", torch.zeros((), dtype=torch.long))\n'
        "    def forward(self, x):\n"
        "        return x[:, self.place]\n"
        "def get_inputs():\n"
        "    return [torch.randn(4, 8)]\n"
        "def get_init_inputs():\n"
        "    return []\n"
    )
    reference.plan(SECRET, 5)
    assert reference.fresh_states is not None and int(reference.fresh_states[True]["place"]) == 1


def test_a_model_of_nothing_but_a_counter_has_a_second_state(make: Make) -> None:
    reference = make(
        "import torch\n\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('calls', torch.zeros((), dtype=torch.long))\n\n"
        "    def forward(self, x):\n        return x * (self.calls > 9)\n\n"
        "def get_inputs():\n    return [torch.rand(4)]\n\ndef get_init_inputs():\n    return []\n"
    )
    assert [step.stretched for step in reference.plan(SECRET, 5) if step.fresh] == [False, True]


def test_a_mask_that_has_to_be_full_stays_full(make: Make) -> None:
    """A reference that raises where a buffer is another is tried without that alone."""
    reference = make(
        texts.problem(
            "assert bool(self.kept.all()) and int(self.at) == 0\nreturn self.linear(x) * self.kept",
            "[torch.rand(4, 8)]",
            'self.linear = nn.Linear(8, 8); self.register_buffer("at", torch.tensor(0))\n'
            'self.register_buffer("kept", torch.ones(8, dtype=torch.bool))',
        )
    )
    reference.plan(SECRET, 5)
    assert reference.fresh_states is not None
    plain, varied = reference.fresh_states
    for name, same in {"kept": True, "at": True, "linear.weight": False, "linear.bias": False}.items():
        assert torch.equal(plain[name], varied[name]) == same


def test_fresh_parameters_are_not_the_first_ones(make: Make) -> None:
    reference = make(texts.LINEAR)
    fresh = reference.construct_fresh(2)
    assert fresh is not None
    first = draw(reference, Step("trial 0", "given", fresh=True))
    model = torch.nn.Linear(64, 32)
    model.load_state_dict({name.removeprefix("linear."): value for name, value in fresh[True].items()})
    with torch.no_grad():
        assert judge(reference, first, model(first.inputs[0])).equal
    plain = draw(reference)
    assert not judge(reference, first, plain.expected).equal
    with torch.no_grad():  # and the first ones are back
        assert judge(reference, plain, reference.model(*plain.inputs)).equal


PADDED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(9, 4, mode="sum", padding_idx=2)
        self.fixed = torch.nn.Parameter(torch.tensor([0.0, 1.0]), requires_grad=False)

    def forward(self, ids):
        return self.bag(ids)

def get_inputs():
    return [torch.randint(0, 9, (5, 6))]

def get_init_inputs():
    return []
"""


def test_a_part_that_no_seed_changes_is_varied_alone(make: Make) -> None:
    """The row of an embedding's padding, which is zeros when it is made, and may be anything in a state."""
    reference = make(PADDED)
    assert reference.fresh_states is not None
    plain, varied = (state["bag.weight"] for state in reference.fresh_states)
    assert not plain[2].any() and varied[2].all()
    others = torch.arange(9) != 2
    assert torch.equal(plain[others], varied[others])


SLOPES = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.nn.PReLU(64)
        self.gain = torch.nn.Parameter(torch.ones(64))
        self.root = torch.nn.Parameter(torch.rand(64) + 0.5)
        self.nothing = torch.nn.Parameter(torch.zeros(0))
        self.short = torch.nn.Parameter(torch.ones(64, dtype=torch.float16))

    def forward(self, x):
        return self.act(x) * self.gain * self.root.sqrt() * self.short.float()

def get_inputs():
    return [torch.randn(8, 64)]

def get_init_inputs():
    return []
"""


def test_weights_of_one_sign_get_the_other_and_slopes_pass_one_as_far_as_the_reference_bears_it(make: Make) -> None:
    reference = make(SLOPES)
    reference.plan(SECRET, 5)
    assert reference.fresh_states is not None
    slopes, gain, root = (reference.fresh_states[True][name] for name in ("act.weight", "gain", "root"))
    assert float(slopes.max()) > 1 and float(slopes.min()) < 0
    assert float(gain.min()) < 0 < float(gain.max()) and float(gain.abs().min()) >= 0.5
    assert float(root.min()) > 0


def test_of_many_tensors_all_are_varied_but_those_that_are_not_borne() -> None:
    """As many at once as can be: few forwards are asked for, and a tensor of two names has one value."""
    plain = {f"part {number}": torch.ones(2) for number in range(300)}
    plain["tied"] = plain["part 7"]
    state = {name: value - 3 for name, value in plain.items()}
    state["tied"] = state["part 7"]
    asked = []

    def bears(one: State) -> bool:
        asked.append(one)
        positive = all(bool((one[f"part {number}"] > 0).all()) for number in (40, 200))
        return positive and one["tied"] is one["part 7"] and bool(one["part 250"].eq(1).all())

    found = borne(plain, state, bears)
    assert len(asked) < 70
    for number in range(300):
        expected = {40: 4.0, 200: 4.0, 250: 1.0}.get(number, -2.0)
        assert torch.equal(found[f"part {number}"], torch.full((2,), expected)), number
    assert found["tied"] is found["part 7"]
