"""What tasks that tell classes apart measure."""

from torch import Tensor, nn


def classification(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> dict[str, Tensor]:
    """Loss and accuracy over a batch."""
    return {
        "loss": nn.functional.cross_entropy(scores, labels, label_smoothing=label_smoothing),
        "accuracy": (scores.argmax(1) == labels).double().mean(),
    }
