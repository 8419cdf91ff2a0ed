"""Files: written whole, read within bounds, as journals, tables, Markdown and highlighted text."""

from typing import Any

# What `json.loads` gives for an object: a value is checked where it is taken out.
JsonObject = dict[str, Any]
