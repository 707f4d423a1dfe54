"""Networks of the paper, written by hand because torchvision does not import over a CPU torch."""
