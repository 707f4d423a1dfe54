"""The table of docs/cluster.md, what the paper's settings cost on GPUs: `python benchmarks/paper_cost.py`.

Nothing is trained, and no data are needed: one micro-batch of tensors that have a shape but no memory goes through the
model, and operations and the bytes that are saved for the backward pass are counted. Evaluations, data loading and the
optimizer's own time are not counted. Activations are counted in float32: too much where a setting trains in 16 bits.
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from aimopt.lab import Study, Supervised, compare
from aimopt.paper.entries import TASKS

RATES = {
    "float32": 10e12,
    "float16": 100e12,
    "bfloat16": 100e12,
}  # operations per second that a GPU is assumed to sustain
BYTES_PER_PARAMETER = 16  # float32: the parameter, its gradient, and two averages
SAME_MODEL = {"wikitext2-finetune": "wikitext103-gpt2"}  # a pretrained model would have to be downloaded


def main() -> None:
    print(
        "| setting | runs at most | steps in all | 10¹⁵ operations per full run | GPU-hours in all | memory per GPU |"
    )
    print("|---|---|---|---|---|---|")
    for name in TASKS:
        study = compare(name, "paper")
        steps = count_steps(study)
        task = study.make_task()
        cells = [f"`{name}`", f"{study.max_run_count():,}", f"{steps:,}"]
        if isinstance(task, Supervised):
            model_task = compare(SAME_MODEL.get(name, name), "paper").make_task()
            assert isinstance(model_task, Supervised)
            operations, memory = one_micro_batch(model_task, task.batch_size // task.micro_batches)
            per_step = operations * task.micro_batches
            hours = steps * per_step / RATES[task.precision] / 3600
            cells += [f"{per_step * task.steps / 1e15:,.0f}", f"{hours:,.0f}", f"{memory / 2**30:.1f} GiB"]
        else:
            cells += ["", "", ""]
        print(f"| {' | '.join(cells)} |")


def count_steps(study: Study) -> int:
    """The training steps of all runs, at most."""
    known = {cell.config.identity: cell.config.steps for cell in study.cells({})}
    return sum(known.values()) + study.count_unknown_runs({}) * study.make_task().steps


def one_micro_batch(task: Supervised, size: int) -> tuple[int, int]:
    """The operations of one forward and backward pass, and the bytes of parameters, state and activations."""
    saved: dict[int, Tensor] = {}

    def remember(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    block = getattr(task, "block", None)
    # transformers must see that no tensor is real; the image models change their memory format, which fakes cannot.
    with FakeTensorMode() if block else torch.device("meta"):
        model = task.model()
        inputs = torch.empty((size, block), dtype=torch.long) if block else torch.empty((size, 3, 32, 32))
        targets = torch.empty((size,), dtype=torch.long)
        batch = (inputs,) if block else (inputs, targets)
        with saved_tensors_hooks(remember, lambda tensor: tensor):
            task.loss(model, batch)
        # The counter knows no attention kernel of CPUs: it gets the products themselves.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            task.loss(model, batch).backward()
    parameters = sum(p.numel() for p in model.parameters())
    owned = {p.untyped_storage()._cdata for p in model.parameters()}
    activations = sum(tensor.untyped_storage().nbytes() for key, tensor in saved.items() if key not in owned)
    return counter.get_total_flops(), parameters * BYTES_PER_PARAMETER + activations


if __name__ == "__main__":
    main()
