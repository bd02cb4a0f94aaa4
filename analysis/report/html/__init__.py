"""The report as one HTML file that opens offline: ``write_report``."""

from __future__ import annotations

from analysis.report.html.page import write_report

__all__ = ["write_report"]
