"""The theory's commands: a table on stdout, a picture on disk, mistakes as one sentence."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from aimopt.cli import main
from aimopt.parts.composition import AXES
from aimopt.theory.trajectories import PROBLEMS


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def width(path: str) -> int:
    with Image.open(path) as picture:
        return picture.width


def test_response(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["response", "radar", "Lion"]) == 0
    out = capsys.readouterr().out
    assert "RADAR: response of m + 0.01·(g − m)" in out
    assert "0.9, 0.88" in out
    assert "12.03" in out
    assert "Sign is not linear" in out
    assert "wrote response.png" in out
    assert width("response.png") > 1000


def test_response_of_other_hyperparameters(capsys: pytest.CaptureFixture[str]) -> None:
    """Each goes to those of the optimizers that have it."""
    settings = ["--set", "gamma=0.45", "--set", "betas=0.9,0.99", "--lr", "0.01", "--picture", "a.svg"]
    assert main(["response", "radar", "nesterov", *settings]) == 0
    out = capsys.readouterr().out
    assert "0.9, 0.495" in out
    assert "0.9, 0.9 " in out
    assert Path("a.svg").read_text().startswith("<?xml")


OWN = """
from dataclasses import dataclass
from aimopt import AIM, EMA, Adaptive
from aimopt.parts.component import Filter, Geometry, Correction, Transfer, zeros

@dataclass(frozen=True)
class Halved(Filter):
    keep: float = 0.5

    @property
    def pole(self):
        return self.keep

    def buffers(self):
        return {"exp_avg": zeros}

    def update(self, state, g, t):
        return state["exp_avg"].mul_(self.keep).add_(g, alpha=1 - self.keep).clone(), g

    def transfer(self):
        return Transfer((1 - self.keep,), (1.0, -self.keep))

@dataclass(frozen=True)
class Softened(Geometry):
    linear = False

    def update(self, state, g, t, pole):
        return None

    def apply(self, x, metric):
        return x / (x.abs() + 1)

@dataclass(frozen=True)
class Half(Correction):
    def ratio(self, lr, pole):
        return 0.5

    def displacement(self, step):
        return step.P(step.m * 0.5 + step.g * 0.5) * step.lr

class Mine(AIM):
    def __init__(self, params, lr=0.1, keep=0.5):
        super().__init__(params, lr, filter=Halved(keep), geometry=Adaptive())

@dataclass(frozen=True)
class Needy(Filter):
    keep: float

    pole = 0.5
    update = Halved.update

nothing = 3
"""


@pytest.fixture
def own(elsewhere: Path) -> Iterator[None]:
    before = {axis: dict(kind.registry) for axis, kind in AXES.items()}
    (elsewhere / "mine.py").write_text(OWN)
    yield
    for axis, kind in AXES.items():  # another test loads another file with the same classes
        kind.registry.clear()
        kind.registry.update(before[axis])


def test_response_of_the_parts_of_a_file(own: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["response", "mine.py:Halved", "mine.py:Half", "mine.py:Mine", "adamw", "--set", "keep=0.8"]) == 0
    out = capsys.readouterr().out
    assert "Halved: response of m to the gradient" in out
    assert "0.8, 1 " in out  # β, ν
    assert "EMA + Half: response of m + 0.5·(g − m)" in out
    assert "Mine: response of m to" in out
    assert out.split("is below")[1].count("\n") > 4
    assert main(["response", "ademamix", "mars", "cautiousadamw"]) == 0
    out = capsys.readouterr().out
    assert "0.9999, 0.9" in out
    assert "Cautious is not linear" in out


def test_trajectories_of_the_parts_of_a_file(own: None, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [argument for name in ("Halved", "Softened", "Half") for argument in ("--part", f"mine.py:{name}")]
    assert main(["trajectories", "beale", "--steps", "3", "--picture", "b.png", *parts]) == 0
    out = capsys.readouterr().out
    for row in ("Euclidean   Halved", "infinity    Half", "Softened    secant", "weighted    RADAR"):
        assert row in out
    assert width("b.png") > 1500  # a third column of panels


def test_mistakes_with_a_file_are_one_sentence(own: None, capsys: pytest.CaptureFixture[str]) -> None:
    for command, sentence in (
        ("response mine.py:Halve", "mine.py has no 'Halve'; did you mean 'Halved'?"),
        (
            "response mine.py:nothing",
            "mine.py:nothing is not the class of an optimizer or of a part of aimopt; it is 3",
        ),
        ("response mine.py:Softened", "mine.py:Softened is a geometry, which has no response; give an optimizer"),
        ("response mine.py:Needy", "mine.py:Needy cannot be built: TypeError"),
        ("response mine.py:Halved --set kep=1", "none of mine.py:Halved has the kep of --set; did you mean 'keep'?"),
        ("response theirs.py:Halved", "theirs.py"),
        ("trajectories beale --part mine.py:Mine", "mine.py:Mine is an optimizer; give the class of a part"),
    ):
        assert main(command.split()) == 2
        err = capsys.readouterr().err
        assert sentence in err
        assert err.count("\n") == 1


def test_certify(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "--L=1", "--sigma2=0.1", "--nu-min=0.5", "--lr=5e-3", "--picture=c.png"]) == 0
    out = capsys.readouterr().out
    assert "certified: η=0.005  ℓ=5e-05" in out
    assert "largest certified learning rate at this ℓ/η: 0.0162674" in out
    assert "infinity" in out
    assert width("c.png") > 1000


def test_certify_an_infeasible_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """That is an answer, not a mistake."""
    assert main(["certify", "--L=1", "--lr=0.5"]) == 0
    out = capsys.readouterr().out
    assert "no certificate for η=0.5" in out
    assert "d2 > 0 fails" in out
    assert Path("certificate.png").exists()


def test_trajectories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trajectories", "beale", "--steps", "3", "--picture", "b.png"]) == 0
    out = capsys.readouterr().out
    assert "Beale's function, 3 steps" in out
    assert "RADAR" in out
    assert width("b.png") > 1000
    assert main(["trajectories", "valley", "--steps", "2"]) == 0
    with Image.open("valley.gif") as gif:
        assert getattr(gif, "n_frames", 1) == 3


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("response radr", "no optimizer is called 'radr'; did you mean 'RADAR'?"),
        ("response radar --set gama=1", "none of radar has the gama of --set; did you mean 'gamma'?"),
        ("response radar --set betas=1.0,0.9", "beta must be a number in [0, 1), got 1.0"),
        ("response radar --set gamma=None", "gamma must be a number in [0, ∞), got None"),
        ("response radar --set params=1", "none of radar has the params of --set"),
        ("response radar --set lr=1 --lr 2", "--lr and --set lr both set the learning rate"),
        ("response radar --set gamma=0 --set gamma=1", "gamma is given twice, as 0 and as 1; give it once"),
        ("response radar --picture nowhere/x.png", "there is no folder 'nowhere'; make it first"),
        ("response radar --picture x", "must end in .png, .pdf, .svg, got 'x'"),
        ("certify --L x --lr 1e-3", "argument --L: must be a number, got 'x'"),
        ("certify --L 1 --lr one", "argument --lr: must be a number, got 'one'"),
        ("certify --L -1 --lr 1e-3", "L must be a finite number > 0"),
        ("certify --L 1 --lr 1e-3 --beta1 1", "beta1 must be a finite number in [0, 1)"),
        ("certify --L 1 --lr 1e-3 --ell-ratio 2", "ell_ratio must be a finite number in [0, 1]"),
        ("certify --L 1 --lr 1e-3 --nu-min 2", "nu_min=2 exceeds nu_max=1"),
        ("certify --L 1 --lr 1e-3 --batch 0", "argument --batch: must be a finite number > 0, got '0'"),
        ("certify --L 1 --lr 1e-3 --start nan", "argument --start: must be a finite number > 0, got 'nan'"),
        (
            "certify --L 1e300 --lr 1e300",
            "L 1e+300, nu_min 1, nu_max 1, beta1 0.9, gamma 0.1, lr 1e+300: some of these are",
        ),
        ("certify --L 1 --lr 5e-3 --gamma 1e308", "gamma 1e+308, lr 0.005: some of these are too large or too small"),
        ("certify --L 1 --lr 1e-320", "some of these are too large or too small to compute with; give others"),
        ("certify --L 1e-320 --lr 5e-3", "some of these are too large or too small to compute with; give others"),
        (
            "response radar --set gamma=1e308",
            "the response of RADAR cannot be computed: its coefficients are too large",
        ),
        ("trajectories bale", "did you mean 'beale'?"),
        ("trajectories beale --steps 0", "must be a whole number from 1, got '0'"),
    ],
)
def test_mistakes_are_one_sentence(command: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(command.split())
    except SystemExit as error:  # argparse leaves by itself
        status = int(str(error.code))
    assert status == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert err.startswith(f"aimopt {command.split()[0]}: ")


@pytest.mark.parametrize("command", ["response", "certify", "trajectories"])
def test_help_shows_an_example_that_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    if command == "trajectories":
        assert all(name in out for name in PROBLEMS)
    example = out.split("example:\n")[1].split()
    assert example[:2] == ["aimopt", command]
    shortened = [word.replace("200", "3").replace(".gif", ".png") for word in example[1:]]
    assert main(shortened) == 0
