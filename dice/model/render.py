"""Renders chat templates, in a process of its own: a template comes with downloaded files and may run for ever.

Started by `chat.py` as a file, so that nothing but the standard library and Jinja is imported, and nothing of DICE can
be: the interpreter need not find it. Reads lines of JSON and answers each with one. The first line is the template, any
other the variables to render it with; an answer has `text`, or `error` and whether the template itself is `invalid`.
The process limits its own memory and processor time; its parent limits the time by the clock.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Bytes of address space that the process may have; the interpreter itself takes some 50 MB.
MEMORY = 1 << 30
# Seconds of the processor that one conversation may take, in case that the parent, which watches the clock, is gone.
CPU_S = 60
# Characters of a rendered conversation.
LONGEST = 64 << 20


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    template: Template | None = None
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:
            if template is None:
                template = _environment().from_string(json.loads(line))
                answer: dict[str, Any] = {"text": ""}
            else:
                text = template.render(**json.loads(line))
                answer = {"text": text} if len(text) <= LONGEST else {"error": "it writes too much"}
        except MemoryError:
            answer = {"error": "it takes too much memory", "invalid": template is None}
        except RecursionError:
            answer = {"error": "it is nested too deeply", "invalid": template is None}
        except Exception as error:  # whatever a template may bring about
            said = f"{error}" if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            answer = {"error": said[:500], "invalid": template is None}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


class Generation(Extension):
    """`{% generation %}`: marks what an assistant wrote, for those who train on it. The text is the same."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


if __name__ == "__main__":
    try:
        main()
    except MemoryError:  # while an answer was written: the same end as by the system's own limit
        os.kill(os.getpid(), signal.SIGKILL)
