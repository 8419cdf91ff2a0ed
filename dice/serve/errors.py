"""What goes wrong, in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dice.errors import UserError
from dice.files import JsonObject

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
LONGEST_MESSAGE = 500


class ApiError(Exception):
    """An answer that is a refusal. `message` is for the client, and tells nothing of other clients or this machine."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, retry_s: int | None = None
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_s = status, message, param, code, retry_s

    def body(self) -> JsonObject:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        message = self.message[:LONGEST_MESSAGE]
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"retry-after": str(self.retry_s)} if self.retry_s is not None else {}
        return headers | ({"www-authenticate": "Bearer"} if self.status == 401 else {})

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def internal() -> ApiError:
    """A fault of ours: what it was stands in the log, under the request's id."""
    return ApiError(500, "The server failed over this request; its log says how.", code="internal_error")


def install(app: FastAPI) -> None:
    """Answer every error in OpenAI's form."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def unusable(request: Request, error: Exception) -> JSONResponse:
        return ApiError(400, str(error)).response()

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return said_of(error.errors()).response()

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        said = {404: "There is no such address here.", 405: "This address takes no such method."}
        answer = ApiError(
            error.status_code, said.get(error.status_code, "The body of the request is no JSON.")
        ).response()
        answer.headers.update(error.headers or {})  # a 405 names the methods that the address takes
        return answer

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return internal().response()

    app.add_exception_handler(Exception, failed)
    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(UserError, unusable)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def said_of(errors: Sequence[Any]) -> ApiError:
    """The first error of a request's form, in a sentence; its values are not repeated."""
    first = errors[0]
    # Members of a union are named by their types, which a client has not heard of.
    place = [str(part) for part in first["loc"] if part != "body" and str(part).replace("_", "").isalnum()]
    param = ".".join(place)[:100] or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"Unrecognized request argument supplied: {param}", param, "unknown_parameter")
    if first["type"] == "unsupported_parameter":
        return ApiError(400, f"{first['msg']}.", first["ctx"]["param"], "unsupported_parameter")
    if first["type"] == "json_invalid":
        return ApiError(400, "The body of the request is no JSON.")
    said = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    return ApiError(400, f"{param or 'The request'}: {said}.", param, "invalid_value")
