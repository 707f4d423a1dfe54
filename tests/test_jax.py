"""The optax transformations of `aimopt.jax` are the steps of torch, and keep the conventions of optax."""

import inspect
import pickle
import random
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import isabstract
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from jax import numpy as jnp

import aimopt
import aimopt.jax
from aimopt import kernels
from aimopt.aim import AIM
from aimopt.jax.arrays import Array
from aimopt.optimizers import NAMED
from aimopt.parts.component import Filter, State, StepCount, Transfer, zeros
from aimopt.parts.composition import AXES, Parts
from aimopt.step.options import OPTIONS

STEPS = 200
# Few leaves: JAX compiles the step of each.
SHAPES: tuple[tuple[int, ...], ...] = ((5, 4), (7,))
MATRICES: tuple[tuple[int, ...], ...] = ((5, 4), (3, 2, 2, 2))
# Where bases of eigenvectors are compared: the factors of an oblong gradient have a null space, which has no one basis.
SQUARES: tuple[tuple[int, ...], ...] = ((5, 5), (4, 2, 2))
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
# Newton–Schulz iterations run in float32 and amplify the last bits of small singular values.
MATRIX_TOLERANCE = {"float32": 1e-5, "float64": 1e-6}
Schedule = Callable[[Any], Any]


def noise(shapes: tuple[tuple[int, ...], ...], dtype: str, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Parameters, and the random part of their gradients at every step."""
    draw = np.random.default_rng(seed)
    params = [draw.normal(size=shape).astype(dtype) for shape in shapes]
    return params, [draw.normal(size=(STEPS, *shape)).astype(dtype) for shape in shapes]


def shapes_for(parts: Parts) -> tuple[tuple[int, ...], ...]:
    if isinstance(parts.geometry, aimopt.Eigenbasis):
        return SQUARES
    return MATRICES if parts.geometry.matrices_only else SHAPES


def drive_torch(factory: Callable[[Any], AIM], params: list[Any], grads: list[Any], schedule: Schedule) -> list[Any]:
    tensors = [torch.tensor(p).requires_grad_() for p in params]
    optimizer = factory(tensors)
    for t in range(STEPS):
        for p, g in zip(tensors, grads, strict=True):
            p.grad = torch.tensor(g[t]) + 0.3 * p.detach()
        for group in optimizer.param_groups:
            group["lr"] = schedule(t)
        optimizer.step()
    return [p.detach().numpy() for p in tensors]


def drive_jax(transformation: Any, params: list[Any], grads: list[Any]) -> list[Any]:
    """The same steps, in one scan."""

    def step(carry: Any, noise_of_step: Any) -> Any:
        params, state = carry
        grads = [g + 0.3 * p for g, p in zip(noise_of_step, params, strict=True)]
        updates, state = transformation.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    arrays = [jnp.asarray(p) for p in params]
    start = arrays, transformation.init(arrays)
    (end, _), _ = jax.jit(lambda start: jax.lax.scan(step, start, [jnp.asarray(g) for g in grads]))(start)
    return [np.asarray(p) for p in end]


def relative_error(found: list[Any], expected: list[Any]) -> float:
    a, b = (np.concatenate([x.ravel() for x in xs]).astype(np.float64) for xs in (found, expected))
    assert np.isfinite(b).all()
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def random_options(optimizer: Any, draw: random.Random) -> dict[str, Any]:
    """A valid configuration: every number and every switch of the constructor is drawn."""
    while True:
        options: dict[str, Any] = {"maximize": draw.random() < 0.3, "weight_decay": draw.choice([0.0, 0.03, 0.3])}
        for name, parameter in inspect.signature(optimizer).parameters.items():
            default = parameter.default
            if name in (*OPTIONS, *options, "lr", "params"):
                continue
            if isinstance(default, bool):
                options[name] = draw.random() < 0.5
            elif isinstance(default, float):
                options[name] = default * draw.uniform(0.3, 1.0)
            elif name in ("betas", "nus"):
                options[name] = tuple(1 - (1 - min(beta, 0.9999)) * draw.uniform(0.5, 3) for beta in default)
            elif name == "order":
                options[name] = draw.choice([1, 2])
        try:
            optimizer([torch.zeros(2, 2)], **options)
        except ValueError:  # options that exclude each other
            continue
        return options


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Any:
    """A dtype of parameters, with scalars in torch's default dtype as wide as JAX's."""
    wide = request.param == "float64"
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    with jax.enable_x64(wide):
        yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("optimizer", NAMED, ids=lambda optimizer: optimizer.__name__)
def test_named_optimizers_are_those_of_torch(optimizer: Any, dtype: str) -> None:
    draw = random.Random(f"{optimizer.__name__} {dtype}")
    options, lr = random_options(optimizer, draw), draw.uniform(1e-3, 1e-2)
    parts = Parts.from_group(optimizer([torch.zeros(2, 2)]).defaults)
    params, grads = noise(shapes_for(parts), dtype)
    schedule: Schedule = draw.choice([lambda t: lr, lambda t: lr - t * (lr / 300)])
    rate = lr if schedule(0) == schedule(1) else schedule
    found = drive_jax(aimopt.jax.create(optimizer.__name__, rate, **options), params, grads)
    assert {p.dtype for p in found} == {np.dtype(dtype)}

    def torch_end(dtype: str) -> list[Any]:
        wide_params, wide_grads = ([x.astype(dtype) for x in xs] for xs in (params, grads))
        return drive_torch(lambda p: optimizer(p, lr, **options), wide_params, wide_grads, schedule)

    expected = torch_end(dtype)
    tolerance = (MATRIX_TOLERANCE if parts.geometry.matrices_only else TOLERANCE)[dtype]
    if dtype == "float32":  # repeated small decays may cost torch itself more than the tolerance
        tolerance = max(tolerance, relative_error(expected, torch_end("float64")))
        if not kernels.status()["fused, CPU"].startswith("on"):
            tolerance = max(tolerance, STEPS * 2**-24)  # the unfused step rounds the factor of a decay otherwise
    error = relative_error(found, expected)
    assert error < tolerance, (options, rate, error)


def instance(part: Any) -> Any:
    """The part, with a decay that decays, and with the precision that the comparison needs."""
    wanted = {"weight_decay": 0.1, "ns_dtype": "float64"}
    return part(**{name: value for name, value in wanted.items() if hasattr(part, name) and part.__name__ != "Sphere"})


def compositions() -> list[Parts]:
    """A few compositions in which every part of the package occurs that does not evaluate the closure again."""
    waiting = {
        axis: [instance(p) for p in base.registry.values() if p.__module__.startswith("aimopt.") and not isabstract(p)]
        for axis, base in AXES.items()
    }
    waiting["correction"] = [part for part in waiting["correction"] if not part.evaluates_again]
    found = []
    while any(waiting.values()):
        parts = Parts(aimopt.EMA(), aimopt.Euclidean(), aimopt.Direct())
        for axis, candidates in waiting.items():
            fitting = [part for part in candidates if is_valid(parts._replace(**{axis: part}))]
            if fitting:
                parts = parts._replace(**{axis: fitting[0]})
                candidates.remove(fitting[0])
        found.append(parts)
    return found


def is_valid(parts: Parts) -> bool:
    try:
        parts.validate()
        parts.to_group()
    except ValueError:
        return False
    return True


COMPOSITIONS = compositions()


@pytest.mark.parametrize("parts", COMPOSITIONS, ids=lambda parts: parts.names)
@pytest.mark.usefixtures("float64_scalars")
def test_every_part_is_that_of_torch(parts: Parts) -> None:
    chosen: Any = parts._asdict()
    params, grads = noise(shapes_for(parts), "float64")
    with jax.enable_x64(True):
        found = drive_jax(aimopt.jax.from_parts(3e-3, **chosen), params, grads)
    expected = drive_torch(lambda p: AIM(p, 3e-3, **chosen), params, grads, lambda t: 3e-3)
    assert relative_error(found, expected) < TOLERANCE["float64"]


def tree(dtype: Any = jnp.float32) -> tuple[Any, Any]:
    """A tree of parameters, and a gradient of each."""
    params = {"dense": {"kernel": jnp.linspace(-1, 1, 12, dtype=dtype).reshape(3, 4), "bias": jnp.ones(4, dtype)}}
    return params, jax.tree.map(lambda p: p**2 - 0.3 + 0.1 * p, params)


def one_step(transformation: Any, dtype: Any = jnp.float32) -> Any:
    params, grads = tree(dtype)
    return jax.jit(transformation.update)(grads, transformation.init(params), params)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, tolerance, 1e-12), found, expected)


@pytest.mark.parametrize("name", ["radar", "qhadam", "nadam", "sgdm"])
def test_injected_hyperparameters_are_arrays(name: str) -> None:
    factory, schedule = getattr(aimopt.jax, name), optax.cosine_decay_schedule(1e-2, 10)
    injected = optax.inject_hyperparams(factory)(schedule, weight_decay=0.1)
    updates, state = one_step(injected)
    assert {"learning_rate", "weight_decay"} <= state.hyperparams.keys()
    assert_close(updates, one_step(factory(schedule, weight_decay=0.1))[0], 2e-6)


def test_a_hyperparameter_is_set_while_training() -> None:
    params, grads = tree()
    transformation = optax.inject_hyperparams(aimopt.jax.radar)(1e-2, betas=jnp.array([0.9, 0.99]), weight_decay=0.1)
    state = transformation.init(params)
    state.hyperparams.update(gamma=jnp.float32(0.05), betas=jnp.array([0.8, 0.95]), weight_decay=jnp.float32(0.0))
    updates, _ = jax.jit(transformation.update)(grads, state, params)
    assert_close(updates, one_step(aimopt.jax.radar(1e-2, betas=(0.8, 0.95), gamma=0.05))[0], 2e-6)


def test_the_derivative_by_a_hyperparameter() -> None:
    """Of RADAR's first step without bias correction: θ⁺ depends on γ by −(η−ℓ)·g/R."""
    params, grads = tree()

    def total(gamma: Any) -> Any:
        transformation = aimopt.jax.radar(1e-2, gamma=gamma, bias_correction=False, zeta=1e-3)
        updates, _ = transformation.update(grads, transformation.init(params), params)
        return sum(jnp.sum(x) for x in jax.tree.leaves(updates))

    expected = sum(jnp.sum(-0.0099 * g / jnp.sqrt(0.001 * g * g + 1e-3)) for g in jax.tree.leaves(grads))
    assert_close(jax.jit(jax.grad(total))(jnp.float32(0.1)), expected, 1e-5)


def test_vmap_is_a_loop() -> None:
    params, grads = tree()
    transformation = aimopt.jax.adabelief(1e-2, weight_decay=0.1)
    scales = jnp.array([1.0, 2.0, -3.0])

    def run(scale: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            params, state = carry
            updates, state = transformation.update(jax.tree.map(lambda g: g * scale, grads), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, transformation.init(params)), None, length=8)[0]

    together = jax.jit(jax.vmap(run))(scales)
    run_one = jax.jit(run)
    for i, scale in enumerate(scales):
        assert_close(jax.tree.map(lambda x, i=i: x[i], together), run_one(scale), 1e-5)


def test_hybrids_chains_and_masks() -> None:
    params, grads = tree()
    kinds = {"dense": {"kernel": "muon", "bias": "radar"}}
    hybrid = optax.multi_transform({"muon": aimopt.jax.muon(0.02), "radar": aimopt.jax.radar(1e-3)}, kinds)
    updates, _ = one_step(optax.chain(optax.clip_by_global_norm(1.0), hybrid))
    kernel, bias = params["dense"]["kernel"], params["dense"]["bias"]
    clipped, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    for found, optimizer, p, g in (
        (updates["dense"]["kernel"], aimopt.Muon([tensor(kernel)], 0.02), kernel, clipped["dense"]["kernel"]),
        (updates["dense"]["bias"], aimopt.RADAR([tensor(bias)], 1e-3), bias, clipped["dense"]["bias"]),
    ):
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.grad = tensor(g)
        optimizer.step()
        np.testing.assert_allclose(p + found, parameter.detach().numpy(), 1e-5)
    masked = optax.masked(aimopt.jax.muon(0.02), {"dense": {"kernel": True, "bias": False}})
    assert_close(one_step(masked)[0]["dense"]["bias"], grads["dense"]["bias"])


def tensor(x: Any) -> Any:
    return torch.tensor(np.array(x)).requires_grad_()


def test_wrappers_that_branch_need_updates_like_gradients() -> None:
    inner = aimopt.jax.radar(1e-2, weight_decay=0.1)
    for wrapped in (optax.apply_if_finite(inner, 3), optax.MultiSteps(inner, 2)):
        updates, _ = one_step(wrapped, jnp.bfloat16)
        assert {x.dtype for x in jax.tree.leaves(updates)} == {jnp.dtype("bfloat16")}


def test_16_bit_parameters_have_a_state_in_float32() -> None:
    updates, state = one_step(aimopt.jax.radar(1e-2), jnp.bfloat16)
    assert {x.dtype for x in jax.tree.leaves((state.exp_avg, state.exp_avg_sq))} == {jnp.dtype("float32")}
    params, grads = tree(jnp.bfloat16)
    wide = [jax.tree.map(lambda x: x.astype(jnp.float32), t) for t in (params, grads)]
    transformation = aimopt.jax.radar(1e-2)
    expected, state_of_wide = transformation.update(wide[1], transformation.init(wide[0]), wide[0])
    assert_close(state, state_of_wide)
    assert_close(updates, jax.tree.map(lambda x: x.astype(jnp.bfloat16), expected))


def test_a_state_has_the_names_of_torch_and_is_a_plain_tree() -> None:
    params, _ = tree()
    p = tensor(params["dense"]["kernel"])
    p.grad = torch.ones_like(p)
    for name in aimopt.available():
        optimizer = aimopt.create(name, [p])
        optimizer.step()
        state = aimopt.jax.create(name, 1e-3).init(params["dense"]["kernel"])
        assert {*state._fields} == {*optimizer.state[p]}
        restored = pickle.loads(pickle.dumps(state))
        assert type(restored) is type(state)
        assert_close(restored, state)


def test_params_may_be_left_out_if_nothing_needs_them() -> None:
    params, grads = tree()
    transformation = aimopt.jax.radar(1e-2)
    without, _ = jax.jit(lambda grads, state: transformation.update(grads, state))(grads, transformation.init(params))
    assert_close(without, one_step(transformation)[0])
    with pytest.raises(ValueError, match=r"RADAR: this step needs the parameters.*update\(gradients, state, params\)"):
        aimopt.jax.radar(1e-2, weight_decay=0.1).update(grads, transformation.init(params))


def test_an_average_is_evaluated() -> None:
    params, grads = tree()
    chosen: Any = dict(filter=aimopt.EMA(), geometry=aimopt.Adaptive(), iterate=aimopt.Average(0.5))
    transformation = aimopt.jax.from_parts(1e-1, **chosen)
    updates, state = jax.jit(transformation.update)(grads, transformation.init(params), params)
    after = optax.apply_updates(params, updates)
    halfway = jax.tree.map(lambda a, b: (a + b) / 2, params, after)
    assert_close(jax.jit(transformation.evaluation_params)(state, after), halfway)
    assert aimopt.jax.adam(1e-3).evaluation_params(one_step(aimopt.jax.adam(1e-3))[1], after) == after


@dataclass(frozen=True)
class Sawtooth(Filter):
    """A filter that a user could have written: it keeps the sum of the last steps modulo its rows."""

    pole = 0.5

    def buffers(self) -> dict[str, Any]:
        return {"total": zeros}

    def update(self, state: State, g: Any, t: StepCount) -> tuple[Any, Any]:
        rows = state["total"].flatten(0)[:2]
        rows.add_(g.flatten(0)[:2] % 0.7)  # through a view
        state["total"][..., -1:] = g[..., -1:] / t
        return state["total"] + torch.linalg.vector_norm(g), g

    def transfer(self) -> Transfer:
        raise NotImplementedError


def test_a_part_of_a_user_may_write_through_views() -> None:
    params, grads = noise(((3, 4), (5,)), "float32")
    chosen: Any = dict(filter=Sawtooth(), geometry=aimopt.Euclidean())
    expected = drive_torch(lambda p: AIM(p, 1e-2, **chosen), params, grads, lambda t: 1e-2)
    assert relative_error(drive_jax(aimopt.jax.from_parts(1e-2, **chosen), params, grads), expected) < 1e-6


def test_numbers_are_in_double_precision() -> None:
    """Adam's first step is η·sign(g): in float32, 1 − β₂ would be wrong by 1e-3 of its value."""
    updates, _ = one_step(aimopt.jax.adam(1.0, betas=(0.9, 0.99999), eps=0.0))
    for x in jax.tree.leaves(updates):
        np.testing.assert_allclose(np.abs(x), 1.0, 3e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aimopt.jax.radar(-1.0), "RADAR: lr must be a finite number ≥ 0, got -1.0"),
        (lambda: aimopt.jax.radar(1e-3, gamma=-1), "RADAR: GradientDifference: gamma must be a number in"),
        (lambda: aimopt.jax.radar(1e-3, fused=True), "RADAR: fused is not an option of aimopt.jax"),
        (lambda: aimopt.jax.radar(1e-3, skip_nonfinite=True), "optax.apply_if_finite"),
        (lambda: aimopt.jax.muon(1e-3).init(tree()[0]), r"params\['dense'\]\['bias'\].*optax.multi_transform"),
        (lambda: aimopt.jax.radar(1e-3).init({"x": jnp.arange(3)}), r"RADAR: params\['x'\] has dtype int32"),
        (lambda: aimopt.jax.adam(1e-3).update(*tree(), tree()[0]), "Adam: update needs a state with step and"),
        (lambda: aimopt.jax.create("radr", 1e-3), "did you mean 'RADAR'"),
        (
            lambda: aimopt.jax.from_parts(
                1e-3, filter=aimopt.EMA(), geometry=aimopt.Sign(), correction=aimopt.FixedPoint(iterations=2)
            ),
            "FixedPoint evaluates the gradient more than once per step",
        ),
        (
            lambda: optax.inject_hyperparams(aimopt.jax.rad)(1e-3).init(tree()[0]),
            r"RAD: order must be a plain number.*static_args=\['order'\]",
        ),
        (lambda: Array(jnp.ones(3)).cholesky(), "aimopt.jax knows no function for torch's 'cholesky'"),
        (lambda: bool(Array(jnp.ones(3)) > 0), "a part branches on a value that JAX knows only when the step runs"),
        (lambda: Array(jnp.ones(3)).to(torch.float64), "jax_enable_x64"),
    ],
)
def test_mistakes_get_a_sentence(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_blocks_of_a_matrix_are_matrices_of_their_own() -> None:
    parts: Any = dict(filter=aimopt.EMA(), geometry=aimopt.Spectral(row_blocks=2, adjust_lr_fn="match_rms_adamw"))
    fused = aimopt.jax.from_parts(0.1, **parts)
    blocks = aimopt.jax.from_parts(0.1, filter=parts["filter"], geometry=replace(parts["geometry"], row_blocks=1))
    x = jnp.linspace(-1, 1, 24).reshape(6, 4) ** 3 + jnp.eye(6, 4)
    whole, _ = fused.update(x, fused.init(x), x)
    halves = [blocks.update(half, blocks.init(half), half)[0] for half in (x[:3], x[3:])]
    assert_close(whole, jnp.concatenate(halves), 1e-4)


def test_lr_is_called_learning_rate() -> None:
    with pytest.raises(TypeError, match="optax calls it learning_rate"):
        aimopt.jax.radar(lr=1e-3)
    assert next(iter(inspect.signature(aimopt.jax.radar).parameters)) == "learning_rate"


def test_every_name_is_there() -> None:
    assert {name.lower() for name in aimopt.available()} < {*dir(aimopt.jax)}
    with pytest.raises(AttributeError, match="has no attribute 'radr'"):
        aimopt.jax.radr  # noqa: B018


def test_without_jax_a_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['jax'] = None; import aimopt.jax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: aimopt.jax needs jax and optax; install them with: pip install 'aimopt[jax]'" in done.stderr


def test_the_example_learns() -> None:
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "jax_training.py"))
    assert example["main"](steps=60) > 0.8
