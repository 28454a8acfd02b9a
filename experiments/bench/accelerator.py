"""One accelerator, part by part: the paper's network, whole runs, RATE.

    python experiments/bench/accelerator.py
    python experiments/bench/accelerator.py --peer PATH      # the public PPO too, see `training`
    python experiments/bench/accelerator.py --only acting learning

Each part prints a table; its rows are kept behind those of the parts before. The limits are always
measured.

    limits      products of two matrices in each precision, and reading: the upper bounds
    options     on GPUs: an update of the default job and cached steps of the paper's core, under
                options of XLA that shorten compilation: its seconds, and the program's
    acting      a cached step of GTrXL (GRU) at the paper's size, for several batches; see `acting`
    learning    a learner step of it, the fraction of the product's rate, and memory; see `learning`
    runs        environment steps per second of rollouts and of whole updates against the number of
                environments: the default job, 2 layers of width 256 on MemoryChain, and Memory Maze
                with images; eight seeds in one program; and the public PPO
    rate        a training batch of RATE at its paper's T-Maze size, see `rate`
    attention   a segment's attention as built, against cuDNN's with the positions as a bias

Programs are compiled in groups side by side, and then timed one after another; rows are kept after
each group. On an H200, most of the time is compilation: 50 s for two programs of the default job
side by side, and more than four minutes for ten of `runs`, which did not end. Precisions are
"float32" (products of float32 in full), "tf32" (JAX's default on GPUs since Ampere) and "bfloat16"
(activations, with parameters in float32).
"""

import dataclasses
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import rate
import training
import tyro
from acting import cached_acting
from learning import learner, useful_operations
from timing import Row, interleaved, read, show

from gtrxl_jax.nn.cores.registry import core_config, make_core
from gtrxl_jax.nn.sequence.registry import model_config
from gtrxl_jax.online.config import EnvConfig, OnlineConfig, preset
from gtrxl_jax.online.ppo import PPOConfig
from gtrxl_jax.online.trainer import OnlineTrainer
from gtrxl_jax.online.vmpo import VMPOConfig
from gtrxl_jax.ops.attention import segment_attention, segment_mask, shifted_scores, skew
from gtrxl_jax.runs.programs import compiler_options, make_iteration, over_seeds

PRECISIONS: dict[str, tuple[str, str]] = {
    "float32": ("float32", "highest"),
    "tf32": ("float32", "tensorfloat32"),
    "bfloat16": ("bfloat16", "default"),
}
"""The dtype of activations, and the precision of products of float32."""

PPO = PPOConfig(epochs=4, minibatches=8)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to time."""

    only: tuple[str, ...] = ()
    """Parts to measure; all by default."""
    preset: str = "paper"
    """Size of the core in acting and learning."""
    acting_batches: tuple[int, ...] = (8, 128, 1024)
    cached_steps: int = 16
    learning_batch: int = 64
    unroll: int = 95
    attention_batch: int = 64
    num_envs: tuple[int, ...] = (64, 512, 4096)
    """Numbers of environments of the default job, and all but the last of MemoryChain."""
    width: int = 256
    """Width of the core on MemoryChain, of 2 layers."""
    image_envs: int = 128
    image_layers: int = 4
    image_width: int = 256
    """Size of the core on Memory Maze."""
    seeds: int = 8
    rate_preset: str = "tmaze"
    updates: int = 4
    """Updates in a program."""
    matmul_size: int = 8192
    megabytes: int = 2048
    rounds: int = 5
    options_envs: int = 1024
    """Number of environments of the default job under options of XLA."""
    workers: int = 4
    """Programs that are compiled at the same time."""
    peer: Path | None = None
    """A checkout of the public PPO; without it, only ours is timed."""
    keep: bool = True
    """Write the tables to results/bench."""


@dataclasses.dataclass
class Case:
    """A program to time.

    Attributes:
      label: the beginning of its rows' names.
      call: runs the program once.
      rows: the rows, from the seconds of a call.
    """

    label: str
    call: Callable[[], Any]
    rows: Callable[[float], list[Row]]


Build = Callable[[], list[Case]]
Rows = Iterator[list[Row]]


def measure(builds: Sequence[Build], settings: Settings, workers: int | None = None) -> Rows:
    """Compile cases in groups side by side, and time each group; yields its rows.

    A case that fails is printed and left out.
    """

    def build(one: Build) -> list[Case]:
        try:
            return one()
        except Exception:  # of any kind: the others are still worth their time
            traceback.print_exc()
            return []

    size = workers or settings.workers
    for group in (builds[first : first + size] for first in range(0, len(builds), size)):
        with ThreadPoolExecutor(len(group)) as pool:
            cases = [case for built in pool.map(build, group) for case in built]
        rows = []
        for case in cases:
            try:
                seconds = interleaved({case.label: case.call}, settings.rounds)[case.label]
            except Exception:  # most likely out of memory
                traceback.print_exc()
                continue
            rows += case.rows(seconds)
        yield rows


def products(settings: Settings) -> dict[str, Case]:
    """Return a product of two square matrices in each precision."""
    size = settings.matmul_size

    def case(name: str, dtype: str, precision: str) -> Case:
        a, b = (jax.random.normal(jax.random.key(k), (size, size), dtype) for k in (0, 1))
        product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
        return Case(
            name,
            lambda: product(a, b),
            lambda s: [Row(f"product in {name}", 2e-12 * size**3 / s, "TFLOP/s")],
        )

    return {name: case(name, *form) for name, form in PRECISIONS.items()}


def limits(settings: Settings) -> Rows:
    """Measure the rates that bound all others."""
    reading, held = read(settings.megabytes)
    read_case = Case("read", reading, lambda s: [Row("reading", 1e-9 * held / s, "GB/s")])
    return measure([lambda: [*products(settings).values(), read_case]], settings)


def options(settings: Settings) -> Rows:
    """Time compilation and calls of two programs under options that shorten compilation."""
    without_triton: dict[str, bool | int] = {"xla_gpu_enable_triton_gemm": False}
    all_options: dict[str, dict[str, bool | int] | None] = {"XLA's options": None}
    if jax.default_backend() == "gpu":
        all_options |= {
            "without Triton": without_triton,
            "without Triton and tuning": without_triton | {"xla_gpu_autotune_level": 0},
        }
    default = preset("default")
    job = dataclasses.replace(
        default,
        env=dataclasses.replace(default.env, num_envs=settings.options_envs),
        updates_per_iteration=settings.updates,
    )

    def build_job(name: str) -> list[Case]:
        trainer = OnlineTrainer(job)
        state = jax.jit(trainer.init)(0)
        lowered = jax.jit(make_iteration(trainer), compiler_options=all_options[name]).lower(state)
        began = time.perf_counter()
        program = lowered.compile()
        return [case(f"default job, {name}", lambda: program(state), began, settings.updates)]

    def build_acting(name: str) -> list[Case]:
        core: Any = make_core("gtrxl", settings.preset, dtype="bfloat16")
        steps = settings.cached_steps
        call, _ = cached_acting(core, settings.acting_batches[0], steps, all_options[name])
        began = time.perf_counter()
        jax.block_until_ready(call())
        return [case(f"cached step, bfloat16, {name}", call, began, steps)]

    def case(label: str, call: Callable[[], Any], began: float, count: int) -> Case:
        compilation = Row(f"{label}: compilation", time.perf_counter() - began, "s")
        return Case(label, call, lambda s: [compilation, Row(label, 1e3 * s / count, "ms")])

    yield from measure(
        [
            functools.partial(build, name)
            for build in (build_job, build_acting)
            for name in all_options
        ],
        settings,
        workers=1,
    )


def acting(settings: Settings, bounds: dict[str, float]) -> Rows:
    """Time cached steps, and what reading their bytes takes."""

    def build(name: str, batch: int) -> list[Case]:
        dtype, precision = PRECISIONS[name]
        with jax.default_matmul_precision(precision):
            core: Any = make_core("gtrxl", settings.preset, dtype=dtype)
            call, must_read = cached_acting(core, batch, settings.cached_steps)
            call()

        def rows(seconds: float) -> list[Row]:
            step, label = seconds / settings.cached_steps, f"acting, {name}, batch {batch}"
            floor = 1e-9 * must_read / bounds["reading"]
            return [
                Row(f"{label}: cached step", 1e3 * step, "ms"),
                Row(f"{label}: steps", batch / step, "1/s"),
                Row(f"{label}: time to read its bytes over its time", floor / step, ""),
            ]

        return [Case(name, call, rows)]

    # A step in float32 takes its time for reading, in whatever precision its products are.
    builds = [
        functools.partial(build, name, batch)
        for batch in settings.acting_batches
        for name in ("tf32", "bfloat16")
    ]
    return measure(builds, settings)


def learning(settings: Settings, bounds: dict[str, float]) -> Rows:
    """Time learner steps, and their rate against the product's."""
    batch, unroll = settings.learning_batch, settings.unroll

    def build(name: str) -> list[Case]:
        dtype, precision = PRECISIONS[name]
        with jax.default_matmul_precision(precision):
            core: Any = make_core("gtrxl", settings.preset, dtype=dtype)
            call, program = learner(core, batch, unroll)
        useful = useful_operations(core, batch, unroll)
        memory: Any = program.memory_analysis()
        ceiling = bounds[f"product in {name}"]

        def rows(seconds: float) -> list[Row]:
            label, rate_ = f"learning, {name}, batch {batch}", 1e-12 * useful / seconds
            return [
                Row(f"{label}: step", 1e3 * seconds, "ms"),
                Row(f"{label}: tokens", batch * unroll / seconds, "1/s"),
                Row(f"{label}: rate", rate_, "TFLOP/s"),
                Row(f"{label}: fraction of the product's rate", rate_ / ceiling, ""),
                Row(f"{label}: temporaries", 1e-9 * memory.temp_size_in_bytes, "GB"),
            ]

        return [Case(name, call, rows)]

    return measure([functools.partial(build, name) for name in PRECISIONS], settings)


def attention(settings: Settings) -> Rows:
    """Time forward and backward passes of a segment's attention, as built and with cuDNN."""
    core: Any = make_core("gtrxl", settings.preset)
    config, batch = core.config, settings.attention_batch
    steps = settings.unroll + settings.unroll % 2  # cuDNN takes even lengths
    heads = config.heads
    width, keys = core.width // heads, config.memory_size + steps
    shapes = {
        "query": (batch, steps, heads, width),
        "key": (batch, keys, heads, width),
        "value": (batch, keys, heads, width),
        "position": (config.memory_size + 1, heads, width),
        "content_bias": (heads, width),
        "position_bias": (heads, width),
    }
    arrays = [
        jax.random.normal(jax.random.key(i), shape, jnp.bfloat16)
        for i, shape in enumerate(shapes.values())
    ]
    mask_BTS = segment_mask(
        jnp.zeros((batch, steps), bool),
        jnp.full(batch, config.memory_size, jnp.int32),
        config.memory_size,
    )

    def built(mask: Any, query: Any, key: Any, value: Any, *positions: Any) -> Any:
        position, u, v = positions
        scale = width**-0.5
        scores = shifted_scores((query + v[None, None]) * scale, position)
        return segment_attention((query + u[None, None]) * scale, key, value, scores, mask)[0]

    def by(implementation: Any) -> Callable[..., Any]:
        def attend(mask: Any, query: Any, key: Any, value: Any, *positions: Any) -> Any:
            position, u, v = positions
            shifted = skew(jnp.einsum("bthk,nhk->bhtn", query + v[None, None], position))
            return jax.nn.dot_product_attention(
                query + u[None, None],
                key,
                value,
                bias=jnp.where(mask[:, None], shifted * width**-0.5, -1e9).astype(query.dtype),
                implementation=implementation,
            )

        return attend

    def build(name: str, function: Callable[..., Any]) -> list[Case]:
        def loss(arrays: Any, mask: Any) -> Any:
            return jnp.sum(jnp.square(function(mask, *arrays).astype(float)))

        gradient = jax.jit(jax.grad(loss)).lower(arrays, mask_BTS).compile()
        return [
            Case(
                name,
                lambda: gradient(arrays, mask_BTS),
                lambda s: [Row(f"attention of a layer, bfloat16, {name}", 1e3 * s, "ms")],
            )
        ]

    forms = {"as built": built, "jax.nn": by("xla"), "cuDNN": by("cudnn")}
    if jax.default_backend() != "gpu":
        del forms["cuDNN"]
    return measure([functools.partial(build, n, f) for n, f in forms.items()], settings)


def jobs(settings: Settings) -> dict[str, OnlineConfig]:
    """Return the runs, by their name in the table."""
    default, result = preset("default"), {}
    for number in settings.num_envs:
        result[f"default job, {number} environments"] = dataclasses.replace(
            default, env=dataclasses.replace(default.env, num_envs=number)
        )
    for number in settings.num_envs[:-1]:
        sizes = training.Settings(settings.width, num_envs=number)
        ppo, vmpo = training.job(sizes, PPO), training.job(sizes, VMPOConfig())
        result[f"MemoryChain, PPO, {number} environments"] = ppo
        result[f"MemoryChain, V-MPO, {number} environments"] = vmpo
    maze = EnvConfig("MemoryMaze-9x9-v0", num_envs=settings.image_envs)
    core = core_config(
        "gtrxl",
        "small",
        layers=settings.image_layers,
        width=settings.image_width,
        memory_size=128,
        dtype="bfloat16",
    )
    result[f"Memory Maze, bfloat16, {maze.num_envs} environments"] = dataclasses.replace(
        default, env=maze, core=core, unroll=96
    )
    return {
        name: dataclasses.replace(job, updates_per_iteration=settings.updates)
        for name, job in result.items()
    }


def build_run(label: str, config: OnlineConfig, seeds: int = 1) -> list[Case]:
    """Compile the rollout and the iteration of a run, of several seeds by `over_seeds`."""
    trainer = OnlineTrainer(config)
    began = time.perf_counter()
    init, iteration, act = trainer.init, make_iteration(trainer), trainer.act
    argument: Any = 0
    if seeds > 1:
        init, iteration, act = over_seeds(init), over_seeds(iteration), over_seeds(act)
        argument = jnp.arange(seeds)
    state = jax.jit(init, compiler_options=compiler_options(runs_once=True))(argument)
    program = jax.jit(iteration, compiler_options=compiler_options()).lower(state).compile()
    compiling = time.perf_counter() - began
    params = trainer.algorithm.acting_params(state.learner)
    key = jax.random.key(0) if seeds == 1 else jax.random.split(jax.random.key(0), seeds)
    lowered = jax.jit(act, compiler_options=compiler_options()).lower(params, state.actor, key)
    rollout = lowered.compile()
    memory: Any = program.memory_analysis()
    held = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    steps = seeds * config.steps_per_update

    def of_training(seconds: float) -> list[Row]:
        return [
            Row(f"{label}: training", config.updates_per_iteration * steps / seconds, "steps/s"),
            Row(f"{label}: memory", 1e-9 * held, "GB"),
            Row(f"{label}: start and compilation, beside others", compiling, "s"),
        ]

    return [
        Case(
            label,
            lambda: rollout(params, state.actor, key),
            lambda s: [Row(f"{label}: rollout", steps / s, "steps/s")],
        ),
        Case(label, lambda: program(state), of_training),
    ]


def build_peer(number: int, settings: Settings) -> list[Case]:
    """Compile the public PPO, at four epochs, on MemoryChain."""
    sizes = training.Settings(settings.width, num_envs=number, peer=settings.peer)
    config = training.job(sizes, PPO)
    runs, seconds = training.peers(sizes, config, [PPO.epochs])
    steps = sizes.peer_updates * config.steps_per_update
    label = f"MemoryChain, the public PPO, {number} environments"
    return [
        Case(
            label,
            lambda: runs[PPO.epochs](jax.random.key(0)),
            lambda s: [
                Row(f"{label}: training", steps / s, "steps/s"),
                Row(f"{label}: compilation, beside others", seconds[PPO.epochs], "s"),
            ],
        )
    ]


def runs(settings: Settings) -> Rows:
    """Time rollouts and updates of whole runs."""
    configs = jobs(settings)
    builds: list[Build] = [functools.partial(build_run, n, c) for n, c in configs.items()]
    first = next(iter(configs))
    label = f"default job, {settings.seeds} seeds of {settings.num_envs[0]} environments"
    builds.append(lambda: build_run(label, configs[first], settings.seeds))
    yield from measure(builds, settings)
    if settings.peer is None:
        print("no --peer: only ours is timed")
        return
    # The peer is traced with patches of its modules, so that its programs are built in turn.
    peers = [functools.partial(build_peer, n, settings) for n in settings.num_envs[:-1]]
    yield from measure(peers, settings, workers=1)


def offline(settings: Settings) -> Rows:
    """Time training batches of RATE."""
    sizes = rate.Settings(preset=settings.rate_preset)

    def build(name: str, **changes: Any) -> list[Case]:
        call = rate.training(rate.make_trainer(sizes, sizes.segments, **changes))
        label = f"RATE, {sizes.preset}, {name}"
        call()
        return [
            Case(name, call, lambda s: [Row(f"{label}: batch", 1e3 * s / sizes.batches, "ms")]),
        ]

    narrow = model_config("rate", sizes.preset, dtype="bfloat16")
    return measure(
        [
            lambda: build("tf32"),
            lambda: build("bfloat16", model=narrow),
            lambda: build("bfloat16, an update a segment", model=narrow, bptt=0),
        ],
        settings,
    )


def main(settings: Settings) -> None:
    """Measure all parts, and keep what there is after each."""
    parts: dict[str, Callable[[dict[str, float]], Rows]] = {
        "options": lambda _: options(settings),
        "acting": lambda bounds: acting(settings, bounds),
        "learning": lambda bounds: learning(settings, bounds),
        "runs": lambda _: runs(settings),
        "rate": lambda _: offline(settings),
        "attention": lambda _: attention(settings),
    }
    if unknown := set(settings.only) - set(parts):
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: choose from {', '.join(parts)}")
    began, before = time.perf_counter(), list[Row]()
    device = jax.devices()[0].device_kind
    bounds: dict[str, float] = {}
    slug = "-".join(device.lower().split())
    for name in ("limits", *(settings.only or parts)):
        for rows in limits(settings) if name == "limits" else parts[name](bounds):
            bounds |= {row.what: row.value for row in rows}
            title = f"{device}: {name}, after {time.perf_counter() - began:.0f} s"
            show(f"accelerator-{slug}", title, rows, keep=settings.keep, before=before)
            before += rows


if __name__ == "__main__":
    main(tyro.cli(Settings))
