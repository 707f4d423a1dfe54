r"""What a process printed before it ended.

last_line("Traceback …\nValueError: no\n")       "ValueError: no"
last_line("")                                    "no output"
"""


def last_line(text: str) -> str:
    """The last line of an output that contains a letter or a digit; `no output` if there is none."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    return lines[-1] if lines else "no output"
