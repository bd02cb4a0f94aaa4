"""Command line, recorder and session files of the tracer."""

__version__ = "0.1.0"
