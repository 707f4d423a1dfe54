"""The paper's seven settings, and two smaller tasks: digits and pendulum."""
