"""Rendering chat templates wherever DICE lies; what templates may do is in `tests/cli/test_strange_files.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dice.errors import MachineError
from dice.model import chat
from dice.model.chat import ChatTemplate

TEMPLATE = "{% for message in messages %}[{{ message.content }}]{% endfor %}"


def test_the_process_that_renders_needs_no_installed_dice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PYTHONPATH at the checkout and a user who works in it: that entry is taken out for safety."""
    (tmp_path / "dice").mkdir()
    (tmp_path / "dice" / "__init__.py").write_text("raise ImportError('the renderer imports DICE')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ChatTemplate(TEMPLATE).render([{"role": "user", "content": "x"}], False) == "[x]"


def test_a_renderer_that_cannot_start_is_no_fault_of_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "Path", lambda _: Path(os.devnull).parent / "none" / "chat.py")
    with pytest.raises(MachineError, match="ended with exit code 2"):
        ChatTemplate(TEMPLATE)
