"""From an experiment to a run folder, and from a run folder to reports."""
