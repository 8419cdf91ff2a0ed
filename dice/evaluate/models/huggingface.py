"""Answers from whatever `transformers` loads: autoregressive models, and diffusion models with code of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dice.errors import MachineError, UserError
from dice.evaluate.models.base import Answer, Question
from dice.model.chat import ChatTemplate

DENOISING = frozenset({"steps", "block_size", "algorithm"})  # settings that only diffusion models have
SPELLED = {"algorithm": "alg", "algorithm_temperature": "alg_temp"}  # by `diffusion_generate`


class TransformersModel:
    """Raises `MachineError` where `transformers` is missing, `UserError` for a model that it cannot load.

    `trust_remote_code`: run the code that comes with the weights, which may do anything; off unless asked for.
    `settings`: keyword arguments of `generate`, or of `diffusion_generate` where the model has one (Dream's family);
    `algorithm` and `algorithm_temperature` are named as there, and without `steps` there is one a token.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], *, trust_remote_code: bool = False):
        try:
            import transformers
        except ImportError:
            raise MachineError("This needs transformers: install the extra `baselines`.") from None
        import torch

        self._torch, self._transformers = torch, transformers
        self._template: ChatTemplate | None = None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.gpu = torch.cuda.current_device() if device == "cuda" else None
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
            model = _load(transformers, name, options | {"dtype": dtype})
        except (OSError, ValueError, ImportError, KeyError) as error:
            raise UserError(f"transformers cannot load {name}: {_first_line(error)}.") from None
        self.model: Any = model.to(device).eval()
        self.settings = {SPELLED.get(key, key): value for key, value in settings.items()}
        if hasattr(model, "diffusion_generate"):
            self.settings.setdefault("steps", self.settings.get("max_new_tokens"))
        elif DENOISING & set(settings):
            raise UserError(f"transformers loads {name}, but has no way to denoise with it; serve it at an endpoint.")
        self._leaving = False

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        for question in questions:
            if self._leaving:
                return
            yield question, self._answer(question)

    def close(self) -> None:
        self._leaving = True

    def _answer(self, question: Question) -> Answer:
        torch, start = self._torch, time.perf_counter()
        ids = self._encode(question.prompt).to(self.model.device)
        width = int(ids.shape[1])
        torch.manual_seed(question.own_seed)
        with torch.inference_mode():
            output = self._generate(ids, torch.ones_like(ids))
        found = output[0, width:].tolist()
        ends = self._ends()
        last = next((place for place, token in enumerate(found) if token in ends), None)
        kept = found if last is None else found[: last + 1]
        text = str(self.tokenizer.decode(kept, skip_special_tokens=True))
        return Answer(
            text,
            stop="length" if last is None else "end",
            prompt_tokens=width,
            tokens=len(kept),
            forwards=self._forwards(len(kept)),
            seconds=round(time.perf_counter() - start, 4),
        )

    def _encode(self, prompt: str) -> Any:
        messages = [{"role": "user", "content": prompt}]
        if getattr(self.tokenizer, "chat_template", None):
            text = self._chat(messages)
            return self.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        return self.tokenizer(prompt, return_tensors="pt").input_ids

    def _chat(self, messages: list[dict[str, str]]) -> str:
        """As `apply_chat_template` would, but within limits: a template comes with downloaded files. A tokenizer with
        code of its own, which was trusted, does it in its own way."""
        own = type(self.tokenizer).apply_chat_template
        if own is not self._transformers.PreTrainedTokenizerBase.apply_chat_template:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        else:
            self._template = self._template or ChatTemplate(self.tokenizer.get_chat_template())
            text = self._template.render(messages, True, **self.tokenizer.special_tokens_map)
        return str(text)

    def _generate(self, ids: Any, mask: Any) -> Any:
        if hasattr(self.model, "diffusion_generate"):
            output = self.model.diffusion_generate(ids, attention_mask=mask, **self.settings)
            return getattr(output, "sequences", output)
        settings = dict(self.settings)
        temperature = float(settings.pop("temperature", 0.0))
        drawn: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        pad = self.tokenizer.pad_token_id
        pad = next(iter(sorted(self._ends())), None) if pad is None else pad
        return self.model.generate(ids, attention_mask=mask, pad_token_id=pad, **drawn, **settings)

    def _forwards(self, tokens: int) -> int:
        if hasattr(self.model, "diffusion_generate"):
            return int(self.settings.get("steps", 0))
        return tokens

    def _ends(self) -> set[int]:
        ids = getattr(self.model.generation_config, "eos_token_id", None)
        ids = ids if isinstance(ids, list) else [ids]
        return {token for token in (*ids, self.tokenizer.eos_token_id) if token is not None}


def _load(transformers: Any, name: str, options: dict[str, Any]) -> Any:
    """Some diffusion models register as `AutoModel` alone."""
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(name, **options)
    except ValueError:
        model = transformers.AutoModel.from_pretrained(name, **options)
        if not hasattr(model, "diffusion_generate") and not hasattr(model, "lm_head"):
            raise UserError(f"{name} is no model that writes text.") from None
        return model


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200].rstrip(".") if str(error).strip() else type(error).__name__
