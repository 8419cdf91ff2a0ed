"""Files of a data set on the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dice.data.sources.catalogue import OWN, SOURCES, Source
from dice.data.sources.files import is_table
from dice.errors import MachineError, UserError
from dice.files.tables import SUFFIXES

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, slots=True)
class Fetched:
    files: tuple[Path, ...]
    source: Source
    licence: str


def named_sources(text: str) -> list[Source]:
    """The known sets called `text`, by our name or by their id on the hub, which may hold several."""
    return [one for one in SOURCES.values() if text == one.name or text.lower() == one.hub.lower()]


def looks_like_id(text: str) -> bool:
    """`owner/name`, unless it ends like a file."""
    return bool(_ID.fullmatch(text)) and Path(text).suffix not in (*SUFFIXES, ".py")


def fetch(text: str) -> list[Fetched]:
    """Download (or find in the hub's local cache) the files of a known set, or the tables of any set by its id.

    Raises `UserError` when there is no such set, `MachineError` when the hub cannot be reached; both say what to do.
    """
    known = named_sources(text)
    if not known:
        return [_download(OWN, text)]
    local = next((one for one in known if not one.hub), None)
    if local is not None:
        what = f"download {' or '.join(local.files)}" if local.files else "make one with `dice data synth`"
        raise UserError(f"{local.name} is not on the hub: {what} and give the path.")
    return [_download(one, one.hub) for one in known]


@dataclass(frozen=True, slots=True)
class Needed:
    """A file that `fetch` would want. `bytes`: its size, where it lies in the hub's local cache; else None."""

    source: str
    url: str
    bytes: int | None
    licence: str  # "" where its publisher states none

    def to_json(self) -> dict[str, object]:
        return {"source": self.source, "url": self.url, "bytes": self.bytes, "licence": self.licence}


def needed(name: str) -> list[Needed]:
    """The files of a known set, without asking the hub for anything."""
    from huggingface_hub import try_to_load_from_cache

    found = []
    for source in named_sources(name):
        for file in source.files:
            cached = try_to_load_from_cache(source.hub, file, repo_type="dataset")
            size = Path(cached).stat().st_size if isinstance(cached, str) else None
            url = f"https://huggingface.co/datasets/{source.hub}/{file}"
            found.append(Needed(source.name, url, size, source.licence))
    return found


def _download(source: Source, identifier: str) -> Fetched:
    # Imported here: the hub client is slow to import and only needed for what is not on this machine.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # our own sentence says what went wrong
    patterns = list(source.files) or [f"*{suffix}" for suffix in SUFFIXES]
    try:
        folder = Path(snapshot_download(identifier, repo_type="dataset", allow_patterns=[*patterns, "README.md"]))
    except GatedRepoError:
        raise UserError(f"The data set {identifier} is restricted: accept its terms on the hub and log in.") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(
            f"There is neither a file or folder nor a data set on the Hugging Face hub called {identifier}."
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        raise MachineError(_offline(source, identifier)) from None
    files = sorted(file for pattern in patterns for file in folder.rglob(pattern) if is_table(file))
    if not files:
        raise UserError(f"The data set {identifier} on the Hugging Face hub holds no {' or '.join(patterns)}.")
    return Fetched(tuple(dict.fromkeys(files)), source, source.licence or stated_licence(folder / "README.md"))


def stated_licence(card: Path) -> str:
    """What the head of a data set's card says: `license: mit`."""
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    head = text.split("\n---", 1)[0] if text.startswith("---\n") else ""
    found = re.search(r"^license:[ \t]*([\w.+-]+)[ \t]*$", head, re.MULTILINE)
    return found[1] if found else ""


def _offline(source: Source, identifier: str) -> str:
    files = " and ".join(source.files) or "its files"
    name = f" --source {source.name}" if source is not OWN else ""
    return (
        f"There is no file or folder {identifier}, and the Hugging Face hub cannot be reached: where it can, download"
        f" {files} from https://huggingface.co/datasets/{identifier}, put it on this machine and give its path:"
        f" dice data import PATH{name} -o samples.parquet."
    )
