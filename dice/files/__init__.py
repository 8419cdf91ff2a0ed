"""Files: written whole, read within bounds, as journals, tables, Markdown and highlighted text."""
