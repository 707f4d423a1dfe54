"""The paper's content: its settings, data, models and published numbers. The lab finds its tasks by entry points."""
