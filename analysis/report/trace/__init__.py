"""A session as a trace of tracks, slices, counters and flows, for Perfetto and Chrome."""
