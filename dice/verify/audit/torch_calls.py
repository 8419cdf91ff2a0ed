"""What a forward is made of: operators as their author wrote them, and the modules around them.

An operator is what a person would name: the outermost call of a PyTorch function (`F.normalize` is one, whatever it is
made of), or of a module of `torch.nn` that is no mere container (`nn.LSTM` is one). Views, copies, shapes and casts
count for nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from dice.files import JsonObject

CONTAINERS = ("Sequential", "ModuleList", "ModuleDict", "Identity", "Flatten", "Unflatten")
_FREE = """
view view_as reshape reshape_as permute transpose swapaxes swapdims movedim moveaxis t adjoint unsqueeze squeeze expand
expand_as broadcast_to broadcast_tensors contiguous clone copy detach flatten unflatten ravel select narrow split
split_with_sizes tensor_split chunk unbind hsplit vsplit dsplit diagonal size dim ndimension numel nelement element_size
stride storage_offset data_ptr item tolist is_contiguous is_floating_point is_complex is_tensor get_device requires_grad
type_as to float half double bfloat16 int long bool type cpu cuda len index iter hash repr format get set getitem numpy
empty_like zeros_like ones_like full_like new_empty new_zeros new_ones new_full new_tensor real imag view_as_real
view_as_complex is_same_size is_nonzero contains array atleast_1d atleast_2d atleast_3d result_type fill zero
"""
FREE = frozenset(_FREE.split())


@dataclass(frozen=True, slots=True)
class Census:
    """One forward. `operators`: name -> calls. `modules`: the problem's own classes below `Model`, name -> calls.
    `layers`: modules of `torch.nn` with parameters that were called; `parameters`: elements in all."""

    operators: dict[str, int] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    layers: int = 0
    parameters: int = 0

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: JsonObject) -> Census:
        """Raises `TypeError` or `ValueError` for what is no census: it may come from a problem's own process."""
        operators, modules = dict(data["operators"]), dict(data["modules"])
        counts = (*operators.values(), *modules.values(), data["layers"], data["parameters"])
        if not all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
            raise ValueError("a census holds counts")
        return cls(
            {str(name)[:80]: count for name, count in operators.items()},
            {str(name)[:80]: count for name, count in modules.items()},
            data["layers"],
            data["parameters"],
        )
