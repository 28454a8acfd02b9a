"""Decision Transformers of Hugging Face act here as they do there.

`naive` is an independent implementation of their model in NumPy: GPT-2 of inputs that are embedded,
all of which are at position 0, with masked steps at the left.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from gtrxl_jax.offline.huggingface import convert, load_decision_transformer
from gtrxl_jax.segments import Segments
from gtrxl_jax.timestep import TimeStep

CONFIG = {
    "model_type": "decision_transformer",
    "state_dim": 5,
    "act_dim": 2,
    "hidden_size": 12,
    "max_ep_len": 30,
    "action_tanh": True,
    "n_positions": 1024,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": None,
    "activation_function": "relu",
    "layer_norm_epsilon": 1e-5,
}
CONTEXT, SCALE = 4, 100.0


def random_tensors(config):
    rng = np.random.default_rng(0)
    width, states, actions = config["hidden_size"], config["state_dim"], config["act_dim"]
    shapes = {
        "embed_timestep.weight": (config["max_ep_len"], width),
        "embed_return.weight": (width, 1),
        "embed_return.bias": (width,),
        "embed_state.weight": (width, states),
        "embed_state.bias": (width,),
        "embed_action.weight": (width, actions),
        "embed_action.bias": (width,),
        "embed_ln.weight": (width,),
        "embed_ln.bias": (width,),
        "encoder.wpe.weight": (1024, width),
        "encoder.wte.weight": (1, width),
        "encoder.ln_f.weight": (width,),
        "encoder.ln_f.bias": (width,),
        "predict_action.0.weight": (actions, width),
        "predict_action.0.bias": (actions,),
        "predict_return.weight": (1, width),
        "predict_return.bias": (1,),
        "predict_state.weight": (states, width),
        "predict_state.bias": (states,),
    }
    for n in range(config["n_layer"]):
        inner = {
            "ln_1": (width,),
            "ln_2": (width,),
            "attn.c_attn": (width, 3 * width),
            "attn.c_proj": (width, width),
            "mlp.c_fc": (width, 4 * width),
            "mlp.c_proj": (4 * width, width),
        }
        for name, shape in inner.items():
            shapes[f"encoder.h.{n}.{name}.weight"] = shape
            shapes[f"encoder.h.{n}.{name}.bias"] = shape[-1:]
        shapes[f"encoder.h.{n}.attn.bias"] = (1, 1, 8, 8)
        shapes[f"encoder.h.{n}.attn.masked_bias"] = ()
    return {
        name: np.asarray(rng.normal(size=shape) / 2, np.float32) for name, shape in shapes.items()
    }


def naive(config, tensors, returns, states, actions, timesteps, mask):
    """Return the predicted actions `[T, A]` of one episode; float64."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def convolution(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x, name):
        z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return z * w[f"{name}.weight"] + w[f"{name}.bias"]

    def activation(x):
        if config["activation_function"] == "relu":
            return np.maximum(x, 0)
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    tokens = []
    for t, time in enumerate(timesteps):
        embedded = w["embed_timestep.weight"][time]
        tokens.append(linear(returns[t : t + 1], "embed_return") + embedded)
        tokens.append(linear(states[t], "embed_state") + embedded)
        tokens.append(linear(actions[t], "embed_action") + embedded)
    x = norm(np.array(tokens), "embed_ln") + w["encoder.wpe.weight"][0]
    exists, heads = np.repeat(mask, 3), config["n_head"]
    for n in range(config["n_layer"]):
        y = convolution(norm(x, f"encoder.h.{n}.ln_1"), f"encoder.h.{n}.attn.c_attn")
        attended = np.zeros_like(x)
        size = x.shape[1] // heads
        for head in range(heads):
            q, k, v = (part[:, head * size : (head + 1) * size] for part in np.split(y, 3, axis=1))
            for i in range(len(x)):
                scores = np.array([q[i] @ k[j] / np.sqrt(size) for j in range(i + 1)])
                scores = np.where(exists[: i + 1], scores, -1e30)
                weights = np.exp(scores - scores.max())
                attended[i, head * size : (head + 1) * size] = weights / weights.sum() @ v[: i + 1]
        x = x + convolution(attended, f"encoder.h.{n}.attn.c_proj")
        hidden = convolution(norm(x, f"encoder.h.{n}.ln_2"), f"encoder.h.{n}.mlp.c_fc")
        x = x + convolution(activation(hidden), f"encoder.h.{n}.mlp.c_proj")
    raw = linear(norm(x, "encoder.ln_f")[1::3], "predict_action.0")
    return np.tanh(raw) if config["action_tanh"] else raw


def episode(steps):
    rng = np.random.default_rng(1)
    return (
        rng.uniform(100, 400, steps).astype(np.float32),
        rng.normal(size=(steps, 5)).astype(np.float32),
        rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
    )


VARIANTS = {
    "relu": {},
    "gelu": {"activation_function": "gelu_new", "n_inner": 48},
    "unbounded": {"action_tanh": False, "n_layer": 1},
}

THEIRS = {
    "relu": [[-0.624652, 0.972601], [-0.724899, 0.953170], [-0.619567, 0.955861]],
    "gelu": [[-0.623041, 0.973175], [-0.738026, 0.957894], [-0.653845, 0.962162]],
    "unbounded": [[-0.087674, 1.889538], [-0.627265, 1.825880], [-0.310154, 1.918185]],
}
"""What transformers 5.24.0 with torch 2.15.0 predicts at the last three steps of the segment."""


@pytest.mark.parametrize("name", VARIANTS)
def test_segments(name):
    config = CONFIG | VARIANTS[name]
    tensors = random_tensors(config)
    model, params = convert(config, tensors, SCALE, CONTEXT)
    returns, states, actions = episode(CONTEXT)
    timesteps = np.array([0, 7, 8, 9], np.int32)
    mask = np.array([False, True, True, True])
    expected = naive(config, tensors, returns / SCALE, states, actions, timesteps, mask)
    segment = Segments(
        observations=states[None],
        actions=actions[None],
        returns_to_go=returns[None],
        timesteps=timesteps[None],
        mask=mask[None],
    )
    _, policy = jax.jit(model.apply)({"params": params}, (), jax.tree.map(jnp.asarray, segment))
    np.testing.assert_allclose(policy.mean[0, 1:], expected[1:], atol=1e-5)
    np.testing.assert_allclose(policy.mean[0, 1:], THEIRS[name], atol=1e-5)


def write(folder, config=CONFIG, **changes):
    tensors = random_tensors(CONFIG) | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")
    return random_tensors(CONFIG)


def test_policy_acts_as_there(tmp_path):
    """Step by step, longer than the model sees, on states that it normalizes."""
    tensors = write(tmp_path)
    mean, std = np.linspace(-1, 1, 5), np.linspace(0.5, 2, 5)
    policy, params = load_decision_transformer(
        tmp_path,
        target_return=360.0,
        return_scale=SCALE,
        context=CONTEXT,
        state_mean=mean,
        state_std=std,
    )
    steps = 6
    _, states, _ = episode(steps)
    rewards = np.array([0, 10, 20, -5, 7, 1], np.float32)
    asked = 360 - np.cumsum(rewards)
    state, taken = policy.init(params, 1), []
    act = jax.jit(policy.act)
    for t in range(steps):
        timestep = TimeStep(
            observation=jnp.asarray(states[t : t + 1]),
            reward=jnp.asarray(rewards[t : t + 1]),
            discount=jnp.ones(1),
            first=jnp.array([t == 0]),
            last=jnp.zeros(1, bool),
            action=jnp.zeros((1, 2)),
        )
        state, action, _ = act(params, state, timestep, jax.random.key(0))
        taken.append(np.asarray(action[0]))
        seen = slice(max(0, t + 1 - CONTEXT), t + 1)
        expected = naive(
            CONFIG,
            tensors,
            asked[seen] / SCALE,
            (states[seen] - mean) / std,
            np.array(taken)[seen],
            np.arange(steps)[seen],
            np.ones(t + 1 - seen.start, bool),
        )
        np.testing.assert_allclose(taken[-1], expected[-1], atol=1e-5)


def test_states_of_any_size_are_read_as_there():
    """Beyond the 30 units to which the encoder of a model of our own would clip them."""
    tensors = random_tensors(CONFIG)
    mean, std = np.full(5, 4e4), np.linspace(1e3, 3e4, 5)
    model, params = convert(CONFIG, tensors, 1.0, CONTEXT, mean, std)
    states = np.linspace(-3e4, 9e4, 20).reshape(4, 5).astype(np.float32)
    segment = Segments(
        jnp.asarray(states)[None],
        jnp.zeros((1, 4, 2)),
        jnp.ones((1, 4)),
        jnp.arange(4, dtype=jnp.int32)[None],
        jnp.ones((1, 4), bool),
    )
    _, policy = model.apply({"params": params}, (), segment)
    rest = np.zeros((4, 2)), np.arange(4), np.ones(4, bool)
    expected = naive(CONFIG, tensors, np.ones(4), (states - mean) / std, *rest)
    np.testing.assert_allclose(policy.mean[0], expected, atol=1e-4)


REFUSED = {
    "lost tensor": (
        {"embed_ln.bias": None},
        {},
        "no tensor embed_ln.bias: get the whole model again",
    ),
    "unknown tensor": (
        {"encoder.h.2.ln_1.bias": np.zeros(12, np.float32)},
        {},
        "tensor encoder.h.2.ln_1.bias is of another model",
    ),
    "other shape": (
        {"embed_state.weight": np.zeros((12, 4), np.float32)},
        {},
        r"embed_state.weight has shape \[12, 4\], not \[12, 5\]: config.json is of another",
    ),
    "other model": ({}, {"model_type": "gpt2"}, "model_type is 'gpt2': only"),
    "no size": ({}, {"max_ep_len": None}, "config.json has max_ep_len None: give the config of a"),
    "other activation": ({}, {"activation_function": "silu"}, "activation_function is 'silu'"),
    "other hidden units": ({}, {"n_inner": 7}, "n_inner is 7: only 4"),
    "other attention": (
        {},
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx is True",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_others_are_refused(tmp_path, what, monkeypatch):
    tensors, config, message = REFUSED[what]
    write(tmp_path, CONFIG | config, **tensors)
    with pytest.raises(ValueError, match=message):
        load_decision_transformer(tmp_path, target_return=1.0, return_scale=1.0, context=2)


def test_files_are_refused(tmp_path):
    write(tmp_path)
    options = {"target_return": 1.0, "return_scale": 1.0, "context": 2}
    with pytest.raises(ValueError, match="give 5 numbers of each, or none"):
        load_decision_transformer(tmp_path, **options, state_mean=[0.0] * 5)
    with pytest.raises(ValueError, match="state_std has 0: give deviations above 0"):
        load_decision_transformer(tmp_path, **options, state_mean=[0.0] * 5, state_std=[0.0] * 5)
    (tmp_path / "model.safetensors").write_bytes(b"text")
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        load_decision_transformer(tmp_path, **options)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"is a pickle and is not read: convert it with"):
        load_decision_transformer(tmp_path, **options)
