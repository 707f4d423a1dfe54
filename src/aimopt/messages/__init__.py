"""Texts that people read when something is wrong: suggestions, reasons, printable text, errors of constructors."""
