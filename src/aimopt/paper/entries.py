"""The tasks that this package registers under the entry point group `aimopt.tasks`, as any package can."""

from typing import Any

from aimopt.lab.protocol.task import Task
from aimopt.lab.protocol.tasks import TaskEntry
from aimopt.paper.protocols import PROTOCOLS, SMALL_GAMMA
from aimopt.paper.tasks.digits import Digits
from aimopt.paper.tasks.finetuning import WikitextFinetune
from aimopt.paper.tasks.language import FinewebQwen, WikitextGPT2
from aimopt.paper.tasks.sac import HalfCheetah, Pendulum, Walker2d
from aimopt.paper.tasks.vision import Cifar10ViT, Cifar100ResNet

# The paper's seven settings, in its order.
TASKS = (
    "cifar10-vit",
    "cifar100-resnet50",
    "wikitext103-gpt2",
    "fineweb-qwen",
    "wikitext2-finetune",
    "halfcheetah-sac",
    "walker2d-sac",
)


def _entry(name: str, task: type[Task], **former_settings: Any) -> TaskEntry:
    return TaskEntry(task=task, protocols=PROTOCOLS[name], former_settings=former_settings)


DIGITS = _entry("digits", Digits, weight_decay=5e-5)
CIFAR10_VIT = _entry("cifar10-vit", Cifar10ViT, weight_decay=5e-5)
CIFAR100_RESNET50 = _entry("cifar100-resnet50", Cifar100ResNet, weight_decay=5e-5)
WIKITEXT103_GPT2 = _entry("wikitext103-gpt2", WikitextGPT2, weight_decay=0.0)
FINEWEB_QWEN = _entry("fineweb-qwen", FinewebQwen, weight_decay=0.0, beta2=0.95, gamma=SMALL_GAMMA)
WIKITEXT2_FINETUNE = _entry("wikitext2-finetune", WikitextFinetune, weight_decay=0.0)
HALFCHEETAH_SAC = _entry("halfcheetah-sac", HalfCheetah, weight_decay=0.0, gamma=SMALL_GAMMA)
WALKER2D_SAC = _entry("walker2d-sac", Walker2d, weight_decay=0.0, gamma=SMALL_GAMMA)
PENDULUM_SAC = _entry("pendulum-sac", Pendulum, weight_decay=0.0, gamma=SMALL_GAMMA)
