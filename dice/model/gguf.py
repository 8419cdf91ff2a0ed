"""GGUF files as llama.cpp writes them: Llama, Qwen2 and Qwen3, with their tokenizers, through the library `gguf`.

The weights are dequantised. What llama.cpp changed is changed back: Llama's queries and keys, whose rows it keeps in
the order of the original release's rotary positions, and Llama 3's stretch of those positions, which it keeps as a
tensor of divisors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE
from torch import Tensor

from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.model.checkpoint import CheckpointError, check_finite, check_names
from dice.model.config import SDARConfig
from dice.model.family import FAMILIES, Llama3Rope
from dice.model.sdar import SDAR
from dice.model.tokenizer import QWEN2_WORDS, TokenizerError

ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Our tensor names -> llama.cpp's, by replacements in this order.
_TENSORS = (
    ("lm_head.", "output."),
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("model.layers.", "blk."),
    (".self_attn.q_norm.", ".attn_q_norm."),
    (".self_attn.k_norm.", ".attn_k_norm."),
    (".self_attn.q_proj.", ".attn_q."),
    (".self_attn.k_proj.", ".attn_k."),
    (".self_attn.v_proj.", ".attn_v."),
    (".self_attn.o_proj.", ".attn_output."),
    (".mlp.gate_proj.", ".ffn_gate."),
    (".mlp.up_proj.", ".ffn_up."),
    (".mlp.down_proj.", ".ffn_down."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
)
_ROPE_DIVISORS = "rope_freqs.weight"
_LLAMA3_CONTEXT = 8192  # that all releases with stretched positions were trained at before
_LLAMA3_LOW, _LLAMA3_HIGH = 1.0, 4.0  # their low_freq_factor and high_freq_factor
# Kinds of tokens, `tokenizer.ggml.token_type`.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5


@dataclass(frozen=True)
class _Words:
    """How a text is cut into words before byte-pair merging.

    By `pattern`, and with `gpt2` then as GPT-2 does. `nfc`: it is normalised first. `whole`: a word that is a token
    is not merged from its parts; such a tokenizer begins texts with a token, also where a file does not say so.
    """

    pattern: str = ""
    gpt2: bool = False
    nfc: bool = False
    whole: bool = False


_GPT2, _DIGITS = _Words(gpt2=True), _Words(r"\p{N}", gpt2=True)
_LLAMA3 = _Words(QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), whole=True)
_QWEN2 = _Words(QWEN2_WORDS, nfc=True)
# By llama.cpp's name for it, `tokenizer.ggml.pre`.
_WORDS = {
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
}


class GGUFFile:
    """One GGUF file; tensors are read from disk when `model` asks for them.

    Raises `MachineError` where `gguf` is not installed, `CheckpointError` for what is no such file, is damaged, or
    holds a model that this package does not compute.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            import gguf
        except ImportError:
            raise MachineError("GGUF files need the library gguf: install the extra `gguf`.") from None
        self._gguf = gguf
        if not self.path.is_file():
            raise CheckpointError(f"There is no file {self.path}.")
        with self._readable():
            self._reader = gguf.GGUFReader(self.path)
            self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
            if (self._value("split.count") or 1) > 1:
                raise CheckpointError(f"{self.path} is one of several parts; merge them with `llama-gguf-split` first.")
            self.config = SDARConfig.from_json(self._settings())

    def model(self, dtype: torch.dtype) -> SDAR:
        """The model on the CPU in `dtype`, as `load_model` would return it."""
        with torch.device("meta"):
            model = SDAR(self.config)
        own_names = {_published(name): name for name in model.state_dict()}
        if self.config.tied:
            del own_names[_published("lm_head.weight")]
        expected = {theirs: tuple(model.get_parameter(ours).shape) for theirs, ours in own_names.items()}
        check_names(self.path, expected, self._tensors.keys() - {_ROPE_DIVISORS})
        state = {}
        for theirs, ours in own_names.items():
            tensor = self._tensor(theirs)
            if tuple(tensor.shape) != expected[theirs]:
                raise CheckpointError(
                    f"{self.path} stores {theirs} with shape {list(tensor.shape)}, but its settings ask for "
                    f"{list(expected[theirs])}."
                )
            check_finite(self.path, theirs, tensor)
            state[ours] = self._reordered(ours, tensor).to(dtype)
        if self.config.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state, strict=True, assign=True)
        model.tie()
        model.init_rope("cpu")
        return model.requires_grad_(True)

    def tokenizer(self) -> tuple[FastTokenizer, JsonObject, str | None]:
        """The encoder, what a tokenizer_config.json would say of it, and the chat template where there is one.

        Raises `TokenizerError` for tokenizers other than byte-level BPE with a way to cut words that is known here.
        """
        kind, words = self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.pre")
        if kind != "gpt2" or words not in _WORDS:
            raise TokenizerError(
                f"{self.path} has a tokenizer of type {kind!r}, words {words!r}, which cannot be read from a GGUF file "
                f"here; give the folder of the same tokenizer with --tokenizer."
            )
        with self._readable():
            return self._encoder(_WORDS[words]), self._token_roles(), self._value("tokenizer.chat_template")

    def _settings(self) -> JsonObject:
        """A config.json."""
        family = self._value("general.architecture")
        if family not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise CheckpointError(f"{self.path} holds a model of architecture {family!r}; known are {known}.")
        heads, hidden = self._setting("attention.head_count"), self._setting("embedding_length")
        head_dim = self._value(f"{family}.attention.key_length") or hidden // heads
        if (self._value(f"{family}.rope.dimension_count") or head_dim) != head_dim:
            raise CheckpointError(f"{self.path} rotates only a part of each head, which is not supported.")
        return {
            "model_type": family,
            "architectures": [FAMILIES[family].architecture],
            "vocab_size": len(self._tensor("token_embd.weight")),
            "hidden_size": hidden,
            "intermediate_size": self._setting("feed_forward_length"),
            "num_hidden_layers": self._setting("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._value(f"{family}.attention.head_count_kv") or heads,
            "head_dim": head_dim,
            "max_position_embeddings": self._setting("context_length"),
            "rms_norm_eps": _short(self._setting("attention.layer_norm_rms_epsilon")),
            "rope_theta": _short(self._value(f"{family}.rope.freq_base") or 1e4),
            "rope_scaling": self._rope_scaling(family, head_dim),
            "tie_word_embeddings": _published("lm_head.weight") not in self._tensors,
            "bos_token_id": self._value("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._ends(),
            "torch_dtype": "float32",
        }

    def _rope_scaling(self, family: str, head_dim: int) -> JsonObject | None:
        """Llama 3's, found again from the divisors that llama.cpp keeps of it. Another one `SDARConfig` refuses."""
        kind = self._value(f"{family}.rope.scaling.type") or "none"
        if kind != "none":
            return {"rope_type": kind}
        if _ROPE_DIVISORS not in self._tensors:
            return None
        divisors = self._tensor(_ROPE_DIVISORS)
        context = self._value(f"{family}.rope.scaling.original_context_length") or _LLAMA3_CONTEXT
        rope = Llama3Rope(float(divisors.max()), _LLAMA3_LOW, _LLAMA3_HIGH, context)
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = _short(self._value(f"{family}.rope.freq_base") or 1e4) ** -exponent
        if divisors.shape != frequencies.shape or not torch.allclose(
            frequencies / divisors, rope.stretch(frequencies), rtol=1e-4, atol=0
        ):
            raise CheckpointError(f"{self.path} stretches its positions in a way that is not Llama 3's.")
        return {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": context,
        }

    def _tensor(self, name: str) -> Tensor:
        """Dequantised, in float32, with our order of dimensions."""
        if name not in self._tensors:
            raise CheckpointError(f"{self.path} lacks the tensor {name}.")
        stored = self._tensors[name]
        with self._readable():
            values = self._gguf.dequantize(stored.data, stored.tensor_type)
        return torch.from_numpy(np.array(values, dtype=np.float32))

    def _reordered(self, name: str, tensor: Tensor) -> Tensor:
        """Llama's queries and keys with the halves of each head apart; llama.cpp has them in turn."""
        if self.config.family != "llama" or not name.endswith(("q_proj.weight", "k_proj.weight")):
            return tensor
        pairs = tensor.unflatten(0, (-1, self.config.head_dim // 2, 2))
        return pairs.transpose(1, 2).reshape(tensor.shape)

    def _encoder(self, words: _Words) -> FastTokenizer:
        tokens, kinds = self._value("tokenizer.ggml.tokens"), self._value("tokenizer.ggml.token_type")
        count = len(tokens)
        while count and kinds[count - 1] == _UNUSED:  # rows of the embedding that no token has
            count -= 1
        merges = [tuple(merge.split(" ", 1)) for merge in self._value("tokenizer.ggml.merges")]
        vocabulary = {token: index for index, token in enumerate(tokens[:count])}
        encoder = FastTokenizer(BPE(vocabulary, merges, ignore_merges=words.whole))
        if words.nfc:
            encoder.normalizer = normalizers.NFC()
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.gpt2)
        split = [pre_tokenizers.Split(Regex(words.pattern), "isolated")] if words.pattern else []
        encoder.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
        encoder.decoder = decoders.ByteLevel()
        added = ((tokens[index], kinds[index]) for index in range(count) if kinds[index] in (_CONTROL, _USER_DEFINED))
        encoder.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False) for token, kind in added])
        begin = self._value("tokenizer.ggml.bos_token_id")
        if begin is not None and self._value("tokenizer.ggml.add_bos_token", words.whole):
            name = tokens[begin]
            encoder.post_processor = processors.TemplateProcessing(
                single=[name, "$A"], pair=[name, "$A", name, "$B"], special_tokens=[(name, begin)]
            )
        return encoder

    def _token_roles(self) -> JsonObject:
        tokens = self._value("tokenizer.ggml.tokens")
        roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
        ids = {role: self._value(f"tokenizer.ggml.{name}_token_id") for role, name in roles.items()}
        return {role: tokens[index] for role, index in ids.items() if index is not None}

    def _ends(self) -> list[int] | None:
        ids = (self._value(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
        return sorted({index for index in ids if index is not None}) or None

    def _setting(self, name: str) -> Any:
        """A setting of the architecture that every file has. Raises `CheckpointError`."""
        key = f"{self._value('general.architecture')}.{name}"
        value = self._value(key)
        if not value:
            raise CheckpointError(f"{self.path} does not say {key}.")
        return value

    def _value(self, key: str, default: Any = None) -> Any:
        with self._readable():
            found = self._reader.get_field(key)
            return default if found is None else found.contents()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """The library raises whatever its parts raise for a damaged file, or for a way to quantise that it lacks."""
        try:
            yield
        except UserError:
            raise
        except OSError as error:
            raise CheckpointError(f"Cannot read {self.path}: {error.strerror or error}.") from None
        except (ValueError, LookupError, TypeError, ArithmeticError, NotImplementedError, struct.error) as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
            raise CheckpointError(f"{self.path} is damaged, or no GGUF file that can be read here ({said}).") from None


def _published(name: str) -> str:
    """The tensor that we call `name`, as llama.cpp calls it."""
    for ours, theirs in _TENSORS:
        name = name.replace(ours, theirs)
    return name


def _short(value: float) -> float:
    """1e-05 for the float32 nearest to it."""
    return float(str(np.float32(value)))
