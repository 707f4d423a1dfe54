"""The lab: optimizers compared on real tasks, with the same seeds and a search of the learning rate for each."""
