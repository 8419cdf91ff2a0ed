"""Text to token ids and back, for SDAR's Qwen2 tokenizer and for any byte-level BPE in a `tokenizer.json`.

Control tokens (`<|im_end|>`, `<|MASK|>`, `<think>` ...) are produced only by the chat template or on explicit request.
Text that comes from outside is data: a literal "<|im_end|>" in it becomes ordinary characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from dice.errors import UserError
from dice.files import JsonObject
from dice.files.bounded import check_size, parse_json, read_text
from dice.model.chat import ChatTemplate, ChatTemplateError
from dice.model.config import DEFAULT_MASK_TOKEN_ID
from dice.model.family import MASK_SPELLINGS
from dice.model.token_bound import TokenBound

# How Qwen2 cuts text into words before byte-pair merging: contractions, letters with one leading symbol, single digits,
# symbol runs, line ends, blanks.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Tokens that end an assistant's turn; the last one is that of Llama 3 and LLaDA.
_TURN_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")
# Of these, those that end nothing but a turn.
_RESPONSE_ENDS = ("<|im_end|>", "<|eot_id|>")
# Tokens that templates refer to by name; Llama 3's template begins with `bos_token`.
_TEMPLATE_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
# An assistant's own earlier words may hold its reasoning markup; nobody else's text may.
_ASSISTANT_MARKUP = frozenset({"<think>", "</think>"})
LONG = 10_000  # characters of a text that takes milliseconds to encode
# Half of a surrogate pair, which no UTF-8 text can hold.
_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenizerError(UserError):
    """The tokenizer files are missing or inconsistent; the message is one sentence for the user."""


class TooManyTokens(TokenizerError):
    """The text has more tokens than were asked for at most."""


@contextmanager
def _panics_told(what: str) -> Iterator[None]:
    """Raises `TokenizerError` where the tokenizers library panics, for example over a pattern that never ends to match.

    Its panics are no `Exception`, and their class cannot be imported."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what} ({_brief(error)}).") from None


class Tokenizer:
    """Immutable once built. `vocab_size` counts known tokens; a model may have more (unused) embedding rows."""

    def __init__(
        self,
        full: FastTokenizer,
        *,
        mask_id: int,
        pad_id: int,
        stop_ids: frozenset[int],
        chat_template: str | None = None,
        named_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._full = full
        self._plain = _without_added_tokens(full)
        self._control = {token.content: token_id for token_id, token in full.get_added_tokens_decoder().items()}
        self._special = {token.content for token in full.get_added_tokens_decoder().values() if token.special}
        self._chat_template = chat_template
        self._named_tokens = dict(named_tokens or {})
        self.mask_id = mask_id
        self.pad_id = pad_id
        self.stop_ids = stop_ids
        self.vocab_size = full.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read a checkpoint folder: `tokenizer.json`, or `vocab.json` + `merges.txt` + `tokenizer_config.json`.

        Mask id: config.json's `mask_token_id`, else the token `<|MASK|>` in any of its spellings, else 151669.
        Stop ids: every end-of-text id of tokenizer and generation config, `<|im_end|>`, `<|endoftext|>`, `<|eot_id|>`.
        """
        try:
            with _panics_told(f"The tokenizer in {folder} is not usable"):
                return cls._read(Path(folder))
        except OSError as error:
            raise TokenizerError(f"Cannot read the tokenizer in {folder}: {error.strerror}.") from None
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise TokenizerError(f"The tokenizer in {folder} is not usable ({_brief(error)}).") from None

    @classmethod
    def _read(cls, folder: Path) -> Tokenizer:
        settings = read_settings(folder / "tokenizer_config.json")
        full = read_encoder(folder, settings)
        added = read_settings(folder / "added_tokens.json")
        model, generation = read_settings(folder / "config.json"), read_settings(folder / "generation_config.json")
        mask_id = model.get("mask_token_id")
        if mask_id is None:
            candidates = (_token_id(full, added, spelling) for spelling in MASK_SPELLINGS)
            mask_id = next((found for found in candidates if found is not None), DEFAULT_MASK_TOKEN_ID)
        stops = {_token_id(full, added, text) for text in (*_TURN_ENDS, _content(settings.get("eos_token")))}
        for source in (model, generation):
            ids = source.get("eos_token_id")
            stops |= set(ids) if isinstance(ids, list) else {ids}
        stop_ids = frozenset(stop for stop in stops if stop is not None)
        if not stop_ids:
            raise TokenizerError(f"The tokenizer in {folder} names no end-of-text token.")
        pad_id = _token_id(full, added, _content(settings.get("pad_token")))
        pad_id = min(stop_ids) if pad_id is None else pad_id
        odd = [token for token in (mask_id, pad_id, *stop_ids) if type(token) is not int]
        if odd:
            raise TokenizerError(f"The tokenizer in {folder} gives a token the id {odd[0]!r}.")
        return cls(
            full,
            mask_id=mask_id,
            pad_id=pad_id,
            stop_ids=stop_ids,
            chat_template=read_template(folder, settings),
            named_tokens={name: text for name in _TEMPLATE_TOKENS if (text := _content(settings.get(name)))},
        )

    @property
    def turn_end(self) -> int:
        """The token that a response is taught to end with: that of ChatML or Llama 3, else the end-of-text token."""
        names = (*_RESPONSE_ENDS, self._named_tokens.get("eos_token"))
        found = (self.token_id(name) for name in names if name)
        return next((token for token in found if token is not None), min(self.stop_ids))

    @property
    def text_start(self) -> list[int]:
        """The ids that every text begins with, for tokenizers that begin with one: Llama 3's `<|begin_of_text|>`."""
        return list(self._full.encode("").ids)

    def encode(self, text: str, *, control: bool = False, most: int | None = None) -> list[int]:
        """Token ids of `text`. Control tokens spelled out in it stay plain characters unless `control` is true.

        Raises `TooManyTokens` where there are more than `most`, mostly without encoding all of a long text."""
        tokenizer, text = self._full if control else self._plain, _whole(text)
        with _panics_told("The tokenizer cannot handle a text of this length or form"):
            if len(text) < LONG:
                ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
            else:
                if most is not None and not control and self._bound.exceeds(text, most):
                    raise _too_many(most)
                # Takes the library long; `encode` would keep all other threads of the process from going on meanwhile.
                (encoding,) = tokenizer.encode_batch([text], add_special_tokens=False)
                ids = list(encoding.ids)
        if most is not None and len(ids) > most:
            raise _too_many(most)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; with `skip_special`, without end/turn markers and masks. Reasoning markup is kept.

        Ids outside the vocabulary (unused embedding rows) decode to nothing.
        """
        ids = [token for token in ids if token < self.vocab_size and not (skip_special and token == self.mask_id)]
        with _panics_told("The tokenizer cannot handle what the model wrote"):
            return self._full.decode(ids, skip_special_tokens=skip_special)

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to the UTF-8 bytes of a text, which `decode` shows: maybe half a character; nothing for
        end and turn markers, masks, and ids outside the vocabulary."""
        text = self._full.id_to_token(token) if token < self.vocab_size and token != self.mask_id else None
        if text is None or text in self._special:
            return b""
        if text in self._control or not all(character in _BYTES for character in text):
            return text.encode()
        return bytes(_BYTES[character] for character in text)

    def marker(self, token: int) -> str:
        """The name of a token that adds nothing to a text, such as an end or turn marker; "" for all others."""
        return "" if self.token_bytes(token) else self._full.id_to_token(token) or ""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        most: int | None = None,
        **options: Any,
    ) -> list[int]:
        """Token ids of a conversation in the model's chat template. Raises `TooManyTokens` for more than `most`.

        `messages` are {"role", "content"} mappings; `options` go to the template (SDAR: `enable_thinking`, `tools`).
        Control tokens come from the template alone: the same characters inside a message are encoded as text. For
        messages free of them the result equals `transformers`' `apply_chat_template`.
        """
        text, guard = self._render(messages, add_generation_prompt, options)
        ids: list[int] = []
        for piece in self._control_pattern.split(text):
            if piece in self._control:
                ids.append(self._control[piece])
            elif piece:
                ids.extend(self.encode(piece.replace(guard, ""), most=most))
            if most is not None and len(ids) > most:
                raise _too_many(most)
        return ids

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **options: Any
    ) -> str:
        """The conversation as template text, for people to read; use `encode_chat` for ids."""
        text, guard = self._render(messages, add_generation_prompt, options)
        return text.replace(guard, "")

    def token_id(self, token: str) -> int | None:
        """Id of one vocabulary entry, or None."""
        found = self._full.token_to_id(token)
        return None if found is None else int(found)

    def _render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, options: Mapping[str, Any]
    ) -> tuple[str, str]:
        guard = _unused_character(json.dumps([dict(message) for message in messages], ensure_ascii=False))
        guarded = [self._guarded(message, guard) for message in messages]
        return self._template.render(guarded, add_generation_prompt, **{**self._named_tokens, **options}), guard

    def _guarded(self, message: Mapping[str, Any], guard: str) -> JsonObject:
        """The message with every control token in its strings broken by `guard`, so that no pattern matches it."""
        allowed = _ASSISTANT_MARKUP if message.get("role") == "assistant" else frozenset()

        def broken(match: re.Match[str]) -> str:
            token = match.group()
            return token if token in allowed else token[0] + guard + token[1:]

        def walk(value: Any) -> Any:
            if isinstance(value, str):
                return self._control_pattern.sub(broken, value)
            if isinstance(value, Mapping):
                return {key: walk(item) for key, item in value.items()}
            return [walk(item) for item in value] if isinstance(value, list | tuple) else value

        return {key: walk(value) for key, value in message.items()}

    @cached_property
    def _bound(self) -> TokenBound:
        return TokenBound(self._plain)

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._control, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if longest_first else "((?!))")

    @cached_property
    def _template(self) -> ChatTemplate:
        if self._chat_template is None:
            raise ChatTemplateError("This model's tokenizer has no chat template.")
        return _chat_template(self._chat_template)


@lru_cache(8)
def _chat_template(source: str) -> ChatTemplate:
    """One for each text: each has a process of its own."""
    return ChatTemplate(source)


def read_encoder(folder: Path, settings: Mapping[str, Any]) -> FastTokenizer:
    """The encoder of a checkpoint folder with its added tokens; `settings`: what tokenizer_config.json says.

    Raises `TokenizerError`.
    """
    whole = folder / "tokenizer.json"
    if whole.is_file():
        check_size(whole)
        try:
            return FastTokenizer.from_file(str(whole))
        except Exception as error:  # the tokenizers library raises nothing more specific
            raise TokenizerError(f"{whole} is not a usable tokenizer ({_brief(error)}).") from None
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if not (vocab.is_file() and merges.is_file()):
        raise TokenizerError(f"{folder} holds neither tokenizer.json nor vocab.json with merges.txt.")
    try:
        model = BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the tokenizers library raises nothing more specific
        raise TokenizerError(f"{vocab} and {merges.name} are not a usable tokenizer ({_brief(error)}).") from None
    full = FastTokenizer(model)
    full.normalizer = normalizers.NFC()
    full.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    full.decoder = decoders.ByteLevel()
    _add_control_tokens(full, folder, settings)
    return full


def _add_control_tokens(full: FastTokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Append the added tokens; ids must follow the vocabulary without a gap, as the file format assumes."""
    described = {int(token_id): token for token_id, token in settings.get("added_tokens_decoder", {}).items()}
    if not described:
        by_name = read_settings(folder / "added_tokens.json")
        described = {token_id: {"content": text, "special": True} for text, token_id in by_name.items()}
    for token_id, token in sorted(described.items()):
        flags = {key: bool(token.get(key, False)) for key in ("lstrip", "rstrip", "single_word", "normalized")}
        full.add_tokens([AddedToken(token["content"], special=bool(token.get("special", False)), **flags)])
        if full.token_to_id(token["content"]) != token_id:
            raise TokenizerError(f"The tokenizer in {folder} gives {token['content']} an id that is not {token_id}.")


def _without_added_tokens(full: FastTokenizer) -> FastTokenizer:
    """The same byte-pair encoder, blind to added tokens: they then split like any other characters."""
    description = json.loads(full.to_str())
    description.update(added_tokens=[], post_processor=None)
    return FastTokenizer.from_str(json.dumps(description))


def _token_id(full: FastTokenizer, added: Mapping[str, Any], text: str | None) -> int | None:
    found = full.token_to_id(text) if text else None
    return added.get(text) if found is None and text else found


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def read_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template of a checkpoint folder, from its own file or from `settings`."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read_file(file)
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def read_settings(file: Path) -> JsonObject:
    """The object in a JSON file, empty where there is no file. Raises `TokenizerError`."""
    if not file.is_file():
        return {}
    try:
        data = parse_json(_read_file(file))
    except ValueError:
        raise TokenizerError(f"{file} is not valid JSON.") from None
    return data if isinstance(data, dict) else {}


def _read_file(file: Path) -> str:
    try:
        return read_text(file)
    except UserError as error:
        raise TokenizerError(str(error)) from None


def _too_many(most: int) -> TooManyTokens:
    return TooManyTokens(f"The text has more than {most} tokens.")


def _whole(text: str) -> str:
    """The text, with U+FFFD for half a surrogate pair: the tokenizers library takes valid Unicode alone."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable Latin-1 stands for itself, and
    the others, in their order, have the characters from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in own)
    return {chr(byte): byte for byte in own} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


def _unused_character(text: str) -> str:
    """A private-use character that does not occur in `text`. Raises `TokenizerError` where all do."""
    used = set(text)
    for code in chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE)):
        if chr(code) not in used:
            return chr(code)
    raise TokenizerError("The conversation holds every character for private use, of which one is needed.")
