"""``python -m tracer``."""

from tracer.cli import main

main()
