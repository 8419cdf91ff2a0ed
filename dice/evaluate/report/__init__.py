"""What a run, or several beside each other, came to: tables, figures, one page, and single cases."""

from __future__ import annotations

from dice.evaluate.report.gather import Answer, Report, Run, gather

__all__ = ["Answer", "Report", "Run", "gather"]
