"""The fixtures of the server's tests."""

from serve_helpers import messages, prompt, server

__all__ = ["messages", "prompt", "server"]
