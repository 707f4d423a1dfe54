"""The gallery: every picture of docs/images, with what it shows and the command that draws it.

page()      the Markdown; a picture without an entry, or an entry without a picture, is an error
"""

from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
THEORY = "python examples/theory_plots.py"
# Name of the file: title, caption, command.
PICTURES = {
    "overview.png": (
        "RADAR against AdamW",
        "RADAR's gain over AdamW with the same seed, and over AdamW with a tuned β1, in [the settings in miniature]"
        "(reproduction.md): a point per seed, and the interval of the verdict.",
        "python benchmarks/overview_picture.py",
    ),
    "response.png": (
        "Frequency response",
        "What the momentum of five optimizers does to slow and fast changes of the gradient: "
        "[gain, phase, delay and the weights of past gradients](theory.md#response).",
        THEORY,
    ),
    "stability.png": (
        "Stability",
        "How many steps RADAR takes to divide the error by ten, over γ and the step, "
        "up to [the edge of stability](theory.md#quadratics).",
        THEORY,
    ),
    "certificate.png": (
        "Certificate",
        "The largest learning rate that the paper's convergence theorem certifies, "
        "and [the bound](theory.md#certificate) that it gives.",
        THEORY,
    ),
    "rosenbrock.gif": (
        "The design space at work",
        "Geometries and corrections on their way through Rosenbrock's valley, step by step.",
        THEORY,
    ),
    "valley.png": (
        "A narrow valley, with noise",
        "The same combinations where every gradient is noisy.",
        THEORY,
    ),
    "heat_map.png": (
        "Sensitivity",
        "Test perplexity of RADAR in fine-tuning over ℓ and γ: [what the sweep says](reproduction-mini-1.md).",
        "make report ARCHIVE=mini-1    # build/report/figures has it and all other figures of these runs",
    ),
}


def page() -> str:
    """The Markdown of the gallery."""
    assert {path.name for path in IMAGES.iterdir()} == set(PICTURES), (
        "docs/site/gallery.py lists other pictures than docs/images"
    )
    lines = [
        "# Gallery",
        "",
        "Every picture of these pages, and the command that draws it in a clone of the repository.",
        "",
    ]
    for name, (title, caption, command) in PICTURES.items():
        lines += [f"## {title}", "", f"![{title}](images/{name})", "", caption, "", "```sh", command, "```", ""]
    return "\n".join(lines)
