"""The playground: static files of this package, and what the page must know of the server."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from dice.files import JsonObject
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import PROMPTS
from dice.serve.errors import ApiError
from dice.serve.proofs import Proofs
from dice.serve.settings import ServeSettings

HERE = Path(__file__).parent
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FIRST = "softmax"  # the example that the page begins with


def add(app: FastAPI, tokenizer: Tokenizer, model: SDAR, settings: ServeSettings, proofs: Proofs) -> None:
    """The page at `/`, its files below `/static`, and `/playground.json`, which tells no secret."""
    files = {path.name: path for path in (HERE / "static").iterdir() if path.suffix in KINDS}
    problems = examples()
    before, _, after = PROMPTS[model.config.prompt](problems[0]).partition(problems[0].source.strip())

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return static("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static_file(name: str) -> Response:
        return static(name)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return static("icon.svg")

    @app.get("/playground.json", include_in_schema=False)
    async def facts() -> JsonObject:
        config = model.config
        return {
            "model": settings.model,
            "needs_key": bool(settings.key),
            "block_size": config.block_size,
            "edits": config.traits.kind == "block_diffusion",
            "verifies": not proofs.trouble,
            "why_not": proofs.trouble,
            "prompt": [before, after],
            "examples": [{"name": one.name, "source": one.source} for one in problems],
        }

    def static(name: str) -> Response:
        path = files.get(name)
        if path is None:
            raise ApiError(404, "There is no such address here.")
        return Response(
            path.read_bytes(), media_type=f"{KINDS[path.suffix]}; charset=utf-8", headers={"cache-control": "no-cache"}
        )


def examples() -> list[Problem]:
    """The page's own problems, that which it begins with first."""
    problems = [Problem.from_file(path) for path in sorted((HERE / "modules").glob("*.py"))]
    return sorted(problems, key=lambda problem: problem.name != FIRST)
