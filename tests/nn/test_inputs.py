import jax
import jax.numpy as jnp
import pytest
from gymnasium import spaces

from gtrxl_jax.envs.registry import make_env
from gtrxl_jax.nn.agent import make_agent
from gtrxl_jax.nn.cores.registry import make_core
from gtrxl_jax.timestep import zero_timestep

B, T, D = 2, 3, 16
X, FIRST = jnp.zeros((B, T, D)), jnp.zeros((B, T), bool)

pytestmark = pytest.mark.usefixtures("unchecked")  # the package's own errors


@pytest.fixture(params=["lstm", "gru", "gtrxl"])
def core(request):
    return make_core(request.param, "debug")


@pytest.mark.parametrize(
    ("x", "first", "error", "message"),
    [
        (X[:, 0], FIRST[:, 0], ValueError, r"x must be \[B, T, D\], got shape \(2, 16\): `step`"),
        (X[:, :, :8], FIRST, ValueError, r"x has shape \(2, 3, 8\) but the core has width 16: "),
        (
            X.swapaxes(0, 1),
            FIRST.swapaxes(0, 1),
            ValueError,
            r"x has shape \(3, 2, 16\) but the memory has 2 rows: arrays are batch-major",
        ),
        (X, FIRST[:, :2], ValueError, r"first must have shape \(2, 3\), the shape of x .*\(2, 2\)"),
        (
            X[:, :0],
            FIRST[:, :0],
            ValueError,
            r"x has shape \(2, 0, 16\): a core needs at least one",
        ),
        (X[:0], FIRST[:0], ValueError, r"x has shape \(0, 3, 16\): a core needs at least one row"),
        (X.astype(jnp.int32), FIRST, TypeError, "x must be floating, not int32: encode or cast it"),
        (X.astype(bool), FIRST, TypeError, "x must be floating, not bool"),
        (X, jnp.zeros((B, T)), TypeError, "first must be bool, not float32: true where an episode"),
    ],
)
def test_mismatched_segment_is_rejected_in_one_line(core, x, first, error, message):
    with pytest.raises(error, match=message) as raised:
        core.init(jax.random.key(0), core.initial_memory(B), x, first)
    assert "\n" not in str(raised.value)


def traced(core, function):
    """Trace a function of parameters, memory and cache, without computing them."""

    def run():
        memory = core.initial_memory(B)
        params = core.init(jax.random.key(0), memory, X, FIRST)
        function(params, memory, core.apply(params, memory, method="start"))

    jax.eval_shape(run)


@pytest.mark.parametrize(
    ("x", "first", "error", "message"),
    [
        (X, FIRST, ValueError, r"x must be \[B, D\], got shape \(2, 3, 16\): a segment is for"),
        (
            X[:0, 0],
            FIRST[:0, 0],
            ValueError,
            r"x has shape \(0, 16\): a core needs at least one row",
        ),
        (X[:1, 0], FIRST[:1, 0], ValueError, r"x has shape \(1, 16\) but the memory has 2 rows"),
        (X[:, 0].astype(jnp.uint8), FIRST[:, 0], TypeError, "x must be floating, not uint8"),
        (X[:, 0], FIRST[:, 0].astype(jnp.int32), TypeError, "first must be bool, not int32"),
    ],
)
def test_mismatched_step_is_rejected(core, x, first, error, message):
    def step(params, memory, cache):
        with pytest.raises(error, match=message):
            core.apply(params, cache, x, first, method="step")

    traced(core, step)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["lstm", "gru", "dnc"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_memory_keeps_its_dtype_for_features_of_another(name, dtype):
    core = make_core(name, "debug")
    memory, x_BTD = jax.eval_shape(lambda: core.initial_memory(B)), X.astype(dtype)
    (after, _), _ = jax.eval_shape(core.init_with_output, jax.random.key(0), memory, x_BTD, FIRST)
    assert after == memory


@pytest.mark.parametrize("name", ["lstm", "gru", "dnc"])
def test_memory_of_another_precision(name):
    core, low = make_core(name, "debug"), make_core(name, "debug", dtype="bfloat16")
    memory = low.initial_memory(B)

    def use(params, own, cache):
        _, y_BTD = core.apply(params, memory, X, FIRST)
        started = core.apply(params, memory, method="start")
        stepped, y_BD = core.apply(params, started, X[:, 0], FIRST[:, 0], method="step")
        assert y_BTD.dtype == y_BD.dtype == jnp.float32
        shapes = jax.eval_shape(lambda: (own, own))
        assert jax.eval_shape(lambda: (started, stepped)) == shapes

    traced(core, use)


def test_memory_and_cache_are_not_interchangeable():
    core = make_core("gtrxl", "debug")
    x_BD, first_B = X[:, 0], FIRST[:, 0]

    def interchange(params, memory, cache):
        with pytest.raises(TypeError, match="must be a GTrXLMemory, .*Cache: .*`finish`"):
            core.apply(params, cache, X, FIRST)
        with pytest.raises(TypeError, match="must be a GTrXLMemory, .*Cache: `start`"):
            core.apply(params, cache, method="start")
        with pytest.raises(TypeError, match="must be a GTrXLCache, .*Memory: `start`"):
            core.apply(params, memory, x_BD, first_B, method="step")
        with pytest.raises(TypeError, match="must be a GTrXLCache, .*Memory: `start`"):
            core.apply(params, memory, method="finish")
        restored = vars(memory)  # a dict, as saved
        with pytest.raises(TypeError, match="not dict: start .* `initial_memory`, and restore a"):
            core.apply(params, restored, X, FIRST)

    traced(core, interchange)


@pytest.mark.parametrize(
    ("other", "sizes"),
    [
        ({"memory_size": 6}, r"\(1, 6, 16\), but the core has \(1, 8, 16\)"),
        ({"layers": 2}, r"\(2, 8, 16\)"),
        ({"width": 8}, r"\(1, 8, 8\)"),
    ],
)
def test_memory_of_core_of_other_sizes_is_rejected(other, sizes):
    core = make_core("gtrxl", "debug")
    wrong = make_core("gtrxl", "debug", **other).initial_memory(B)

    def use(params, memory, cache):
        for call in ({"x_BTD": X, "first_BT": FIRST}, {"method": "start"}):
            with pytest.raises(ValueError, match=f"memory has .* {sizes}.*`initial_memory`$"):
                core.apply(params, wrong, **call)

    traced(core, use)


def test_agent_rejects_name_of_core():
    env, params = make_env("TMazePassive-v0")
    observed, acted = env.observation_space(params), env.action_space(params)
    with pytest.raises(TypeError, match="core must be a memory core, not 'gtrxl': make_core"):
        make_agent("gtrxl", observed, acted)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda step: step.replace(first=step.first.astype(jnp.float32)),
            TypeError,
            "timestep.first must be bool, not float32: true where an episode begins",
        ),
        (
            lambda step: step.replace(reward=None),
            TypeError,
            "timestep.reward must be an array, not NoneType: see zero_timestep",
        ),
        (
            lambda step: step.observation,
            TypeError,
            "timestep must be of type TimeStep, not dict: pass one, as zero_timestep returns",
        ),
        (
            lambda step: step.replace(
                observation={**step.observation, "goal": step.observation["goal"][..., None]}
            ),
            ValueError,
            r"observation has parts with the leading axes {'goal': \(2, 3, 1\), 'place': \(2, 3\)}",
        ),
    ],
)
def test_agent_rejects_other_time_steps(change, error, message):
    observed = spaces.Dict({"goal": spaces.Discrete(4), "place": spaces.Box(-1, 1, (3,))})
    agent = make_agent(make_core("gru", "debug"), observed, spaces.Discrete(2))
    step = change(zero_timestep(observed, spaces.Discrete(2), B, T))
    with pytest.raises(error, match=message):
        jax.eval_shape(agent.init, jax.random.key(0), agent.initial_memory(B), step)
