"""What `dice serve` takes beyond its engine: latency of one text, throughput of 64 streams, the first block of a prompt
of 1,000 tokens. At 8B's sizes with random weights, within four minutes of a GPU.

    python benchmarks/serve_gpu.py --out FOLDER [--model 8b] [--streams 64] [--seconds 230]

The same texts are written by the engine alone and then over HTTP, by a client in a process of its own; every step
reveals one token and nothing ends a text early. Writes FOLDER/serve_gpu.json after each row; what it holds is not done
again, and what no time is left for is left for the next call. `--model tiny` tries it on a CPU, where the shares mean
little. Exit code 1 where a text had another number of tokens over HTTP than from the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import itertools
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import uvicorn
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dice.bench.decode import random_model  # noqa: E402
from dice.decode.block_diffusion import new_texts  # noqa: E402
from dice.decode.engine.engine import Engine  # noqa: E402
from dice.files.atomic import write_json  # noqa: E402
from dice.generation import DECODING  # noqa: E402
from dice.model.tokenizer import Tokenizer  # noqa: E402
from dice.recipes import SHAPES  # noqa: E402
from dice.serve.app import Service, make_app  # noqa: E402
from dice.serve.orders import new_engine  # noqa: E402
from dice.serve.server import Connection, listen  # noqa: E402
from dice.serve.settings import ServeSettings  # noqa: E402

Figures = dict[str, Any]
BLOCK = 4
CONTEXT = 2048
ROUNDS = 7  # of each row, after one that is not counted


def tokenizer_of(vocabulary: int) -> Tokenizer:
    """Every token but the last two, a stop token and the mask, adds some letters to a text."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    more = map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4))
    names += [*itertools.islice(more, vocabulary - len(names) - 2), "<|im_end|>", "<|MASK|>"]
    fast = FastTokenizer(BPE({name: place for place, name in enumerate(names)}, []))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast.add_special_tokens(names[-2:])
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return Tokenizer(
        fast,
        mask_id=vocabulary - 1,
        pad_id=vocabulary - 2,
        stop_ids=frozenset({vocabulary - 2}),
        chat_template=template,
    )


def prompts(count: int, length: int, vocabulary: int, turn: int) -> list[list[int]]:
    """That nobody has read before."""
    chance = torch.Generator().manual_seed(1000 * length + turn)
    return [torch.randint(0, vocabulary - 2, (length,), generator=chance).tolist() for _ in range(count)]


def by_engine(engine: Engine, tokenizer: Tokenizer, asked: list[list[int]], most: int) -> Figures:
    """All texts at once. `first_s`, `block_s`: until the first token and the first block of any."""
    config = replace(
        DECODING, max_new_tokens=most, denoising_steps=BLOCK, remasking="sequential", stop_ids=tokenizer.stop_ids,
        vocab_limit=tokenizer.vocab_size,
    )  # fmt: skip
    begun, at = time.perf_counter(), []
    texts = new_texts(engine.model, asked, config, [0] * len(asked))
    handles = [engine.add(text, config, lambda event: at.append(time.perf_counter() - begun)) for text in texts]
    engine.run()
    taken = time.perf_counter() - begun
    return {
        "seconds": taken, "first_s": at[0], "block_s": at[BLOCK - 1],
        "tokens": [handle.trace.kept for handle in handles if handle.trace is not None],
    }  # fmt: skip


async def by_http(port: int, asked: list[list[int]], most: int) -> Figures:
    """The same, as streams of a client that does no more than look for the ends of events."""
    begun, at = time.perf_counter(), []

    async def one(prompt: list[int]) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        body = {
            "prompt": prompt,
            "max_tokens": most,
            "denoising_steps": BLOCK,
            "remasking": "sequential",
            "temperature": 0,
        }
        data = json.dumps(body | options).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        end = b""
        while part := await reader.read(1 << 16):
            at.extend([time.perf_counter() - begun] * part.count(b'"finish_reason":null'))
            end = (end + part)[-2000:]
        writer.close()
        found = re.search(rb'"completion_tokens": ?(\d+)', end)
        if found is None:
            raise RuntimeError(f"the server answered {end.decode(errors='replace')[-500:]}")
        return int(found[1])

    tokens = await asyncio.gather(*map(one, asked))
    return {"seconds": time.perf_counter() - begun, "first_s": at[0], "block_s": at[BLOCK - 1], "tokens": tokens}


@contextlib.contextmanager
def served(service: Service, settings: ServeSettings) -> Iterator[int]:
    """The port of a server in a thread, as `dice serve` starts it."""
    config = uvicorn.Config(
        make_app(service), http=functools.partial(Connection, settings=settings),  # type: ignore[arg-type]
        ws="none", lifespan="on", log_config=None, access_log=False,
    )  # fmt: skip
    server, listening = uvicorn.Server(config), listen(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not service.scheduler.alive:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.05)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def client(port: int, job: str, vocabulary: int) -> list[Figures]:
    """What a client in a process of its own measures."""
    command = [sys.executable, __file__, "--client", str(port), job, str(vocabulary)]
    return list(
        map(json.loads, subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())
    )


def compared(engine: list[Figures], http: list[Figures], count: int) -> Figures:
    """Medians of the rounds that count, and what is lost on the way."""
    engine, http = engine[1:], http[1:]
    middle = {
        who: {name: statistics.median(one[name] for one in rounds) for name in ("seconds", "first_s", "block_s")}
        for who, rounds in (("engine", engine), ("http", http))
    }
    tokens = sum(engine[0]["tokens"])
    return {
        "texts": count, "tokens": tokens,
        "same_counts": [one["tokens"] for one in engine] == [one["tokens"] for one in http],
        **middle, "spread_s": {"engine": [one["seconds"] for one in engine], "http": [one["seconds"] for one in http]},
        "latency_over_engine": middle["http"]["seconds"] / middle["engine"]["seconds"] - 1,
        "share_of_throughput": middle["engine"]["seconds"] / middle["http"]["seconds"],
        "http_tokens_per_s": tokens / middle["http"]["seconds"],
    }  # fmt: skip


def measure(name: str, streams: int, out: Path, seconds: float) -> bool:
    """Fills FOLDER/serve_gpu.json; whether all counts of tokens agree."""
    ends, file = time.monotonic() + seconds, out / "serve_gpu.json"
    known: Figures = json.loads(file.read_text()) if file.exists() else {"rows": {}}
    large = name not in ("tiny", "nano")
    jobs = {  # texts, tokens of their prompts, tokens to write
        "one text": (1, 128, 256 if large else 32),
        f"{streams} streams": (streams, 256, 256 if large else 32),
        "prompt of 1,000": (1, 1000, 8),
    }
    jobs = {job: plan for job, plan in jobs.items() if job not in known["rows"]}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known |= {"model": name, "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU"}
    shape, vocabulary = SHAPES[name]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_model(
        replace(shape, max_position_embeddings=CONTEXT).for_timing(vocabulary, BLOCK), device, dtype, 0
    )
    tokenizer = tokenizer_of(vocabulary)
    settings = ServeSettings(model=name, port=0, slots=streams, queue=streams, verify=False)
    engine = new_engine(model, settings)
    alone: dict[str, list[Figures]] = known.setdefault("engine", {})
    for job, (count, length, most) in jobs.items():
        if job not in alone:
            rounds = [prompts(count, length, vocabulary, turn) for turn in range(1 + ROUNDS)]
            alone[job] = [by_engine(engine, tokenizer, asked, most) for asked in rounds]
            print(f"{job}, by the engine: {[round(one['seconds'], 3) for one in alone[job]]} s", flush=True)
            write_json(file, known)
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    with served(Service(model, tokenizer, settings), settings) as port:
        for job, plan in jobs.items():
            if time.monotonic() > ends:
                print(f"{job}: left for the next call", flush=True)
                continue
            known["rows"][job] = row = compared(alone[job], client(port, json.dumps(plan), vocabulary), plan[0])
            print(job, json.dumps(row), flush=True)
            write_json(file, known)
    return all(row["same_counts"] for row in known["rows"].values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("serve"))
    parser.add_argument("--model", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=230.0)
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        port, job, vocabulary = given.client
        count, length, most = json.loads(job)
        for turn in range(1 + ROUNDS):
            told = asyncio.run(by_http(int(port), prompts(count, length, int(vocabulary), turn), most))
            print(json.dumps(told), flush=True)
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    return 0 if measure(given.model, given.streams, given.out, given.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
