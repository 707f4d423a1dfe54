"""The measures of classification tasks."""

from torch import Tensor, nn


def classification(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> dict[str, Tensor]:
    """The loss and accuracy of a batch."""
    return {
        "loss": nn.functional.cross_entropy(scores, labels, label_smoothing=label_smoothing),
        "accuracy": (scores.argmax(1) == labels).double().mean(),
    }
