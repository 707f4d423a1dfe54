"""The lab: compare optimizers honestly, in one command."""
