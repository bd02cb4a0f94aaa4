"""Recordings of other tools, read into the same tables as live ones."""

from probes.recorded.opening import FORMATS, open_recording
from probes.recorded.recording import Problem, Problems, Recording, RecordingError

__all__ = ["FORMATS", "Problem", "Problems", "Recording", "RecordingError", "open_recording"]
