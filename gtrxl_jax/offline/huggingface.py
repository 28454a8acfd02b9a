"""Decision Transformers of Hugging Face's `transformers`, run as the model "dt-gpt".

    policy, params = load_decision_transformer("hopper-medium", target_return=3600, ...)

A folder has config.json and model.safetensors. The arrays are the same; what the model there has
beside is folded into them: the embedding of position 0, which every token gets, and the mean and
deviation by which its states were normalized. Predictions of states and returns are left out.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from gtrxl_jax.nn.sequence.decision_transformer import DecisionTransformer, GPTConfig
from gtrxl_jax.nn.sequence.registry import make_model
from gtrxl_jax.offline.policy import SequencePolicy
from gtrxl_jax.segments import zero_segment
from gtrxl_jax.specs import action_spec
from gtrxl_jax.timestep import zero_timestep

Tensors = Mapping[str, np.ndarray]

UNUSED = re.compile(
    r"predict_(state|return)\..*|encoder\.wte\.weight|encoder\.h\.\d+\.attn\.(masked_)?bias"
)
"""Tensors that do not contribute to the predicted actions, such as masks."""
FIXED = {
    "model_type": "decision_transformer",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
}
"""Settings that have to have this value if they are given."""
SIZES = ("state_dim", "act_dim", "hidden_size", "max_ep_len", "n_layer", "n_head")
"""Settings that have to be given."""
ACTIVATIONS = {"relu": "relu", "gelu_new": "gelu"}
"""The names there and here."""


def load_decision_transformer(
    folder: str | Path,
    *,
    target_return: float,
    return_scale: float,
    context: int,
    state_mean: Sequence[float] | np.ndarray = (),
    state_std: Sequence[float] | np.ndarray = (),
) -> tuple[SequencePolicy, Any]:
    """Return a policy and its parameters, from a folder in the layout of `transformers`.

    What the folder does not say is in the model's card.

    Args:
      folder: has config.json and model.safetensors.
      target_return: the return to ask for, in units of the rewards.
      return_scale: the divisor of the returns.
      context: the number of steps that the model sees, K there.
      state_mean: the mean of the states, if they were normalized.
      state_std: their deviation.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: if a tensor is missing, unknown or of the wrong shape, or a setting is not
        supported.
    """
    folder = Path(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; a pytorch_model.bin is a pickle and is not read: convert it with "
            "save_pretrained(..., safe_serialization=True) of transformers"
        )
    described = json.loads((folder / "config.json").read_text("utf-8"))
    try:
        tensors = load_file(path)
    except Exception as error:
        raise ValueError(f"{path} is damaged: {error}: get it again") from error
    model, params = convert(described, tensors, return_scale, context, state_mean, state_std)
    action = action_spec(_spaces(described)[1])
    return SequencePolicy(model, action, float(target_return)), params


def convert(
    config: Mapping[str, Any],
    tensors: Tensors,
    return_scale: float = 1.0,
    context: int = 20,
    state_mean: Sequence[float] | np.ndarray = (),
    state_std: Sequence[float] | np.ndarray = (),
) -> tuple[DecisionTransformer, Any]:
    """Return the model and its parameters; for the arguments, see `load_decision_transformer`."""
    _require_sizes(config)
    width, layers = config["hidden_size"], config["n_layer"]
    settings = GPTConfig(
        width=width,
        layers=layers,
        heads=config["n_head"],
        activation=_activation(config),
        max_timestep=config["max_ep_len"] - 1,
        return_scale=return_scale,
        encoder="linear",
    )
    spaces = _spaces(config)
    model = make_model(settings, *spaces, context)
    assert isinstance(model, DecisionTransformer)
    segment = zero_segment(zero_timestep(*spaces, 1, context), ())
    shapes = jax.eval_shape(model.init, jax.random.key(0), (), segment)["params"]
    arrays = _Arrays(tensors)
    # Every token there gets the embedding of position 0, after the norm.
    norm = arrays.norm("embed_ln", width)
    norm["bias"] = norm["bias"] + arrays.get("encoder.wpe.weight", (None, width))[0]
    states = config["state_dim"]
    observation = arrays.linear("embed_state", states, width)
    mean, std = (np.asarray(x, np.float64) for x in (state_mean, state_std))
    if mean.size or std.size:
        if mean.shape != (states,) or std.shape != (states,):
            raise ValueError(
                f"state_mean and state_std have shapes {mean.shape} and {std.shape}: give "
                f"{states} numbers of each, or none"
            )
        if not (std > 0).all():
            raise ValueError(f"state_std has {std.min():g}: give deviations above 0")
        kernel = observation["kernel"] / std[:, None]
        observation = {"kernel": kernel, "bias": observation["bias"] - mean @ kernel}
    converted = {
        "embedding": {
            "return_projection": arrays.linear("embed_return", 1, width),
            "observation_projection": observation,
            "action_projection": arrays.linear("embed_action", config["act_dim"], width),
        },
        "timestep_embedding": {
            "embedding": arrays.get("embed_timestep.weight", (config["max_ep_len"], width))
        },
        "input_norm": norm,
        "output_norm": arrays.norm("encoder.ln_f", width),
        "head": {"output": arrays.linear("predict_action.0", width, config["act_dim"])},
    } | {
        f"blocks_{n}": _block(arrays, f"encoder.h.{n}", width, config["n_head"])
        for n in range(layers)
    }
    arrays.require_all_used()
    return model, _filled(shapes, converted)


def _require_sizes(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a size is missing."""
    for name in SIZES:
        if not isinstance(size := config.get(name), int) or size < 1:
            raise ValueError(
                f"config.json has {name} {size}: give the config of a Decision Transformer, in "
                "which it is a whole number of at least 1"
            )


def _activation(config: Mapping[str, Any]) -> str:
    """Return the activation, after checking the settings that the model here does not have."""
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name} is {config[name]!r}: only {value!r} is supported")
    if config.get("n_inner") not in (None, 4 * config["hidden_size"]):
        raise ValueError(f"n_inner is {config['n_inner']}: only 4 * hidden_size is supported")
    activation = config.get("activation_function", "relu")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation_function is {activation!r}: only {list(ACTIVATIONS)} are supported"
        )
    return ACTIVATIONS[activation]


def _spaces(config: Mapping[str, Any]) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Return the spaces of the states and the actions."""
    bound = 1.0 if config.get("action_tanh", True) else np.inf
    return (
        gymnasium.spaces.Box(-np.inf, np.inf, (config["state_dim"],)),
        gymnasium.spaces.Box(-bound, bound, (config["act_dim"],)),
    )


class _Arrays:
    """Tensors by name, of which it is known which were used."""

    def __init__(self, tensors: Tensors):
        self._tensors = tensors
        self._used: set[str] = set()

    def get(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """Return a tensor of a shape, in which None is any size."""
        if name not in self._tensors:
            raise ValueError(f"there is no tensor {name}: get the whole model again")
        tensor = np.asarray(self._tensors[name])
        if len(tensor.shape) != len(shape) or any(
            size not in (None, found) for size, found in zip(shape, tensor.shape, strict=True)
        ):
            raise ValueError(
                f"tensor {name} has shape {list(tensor.shape)}, not {list(shape)}: config.json is "
                "of another model"
            )
        self._used.add(name)
        return tensor

    def linear(self, name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """Return a linear layer of PyTorch, whose weight is transposed."""
        weight = self.get(f"{name}.weight", (outputs, inputs))
        return {"kernel": weight.T, "bias": self.get(f"{name}.bias", (outputs,))}

    def convolution(self, name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """Return a Conv1D of GPT-2: a linear layer whose weight is not transposed."""
        weight = self.get(f"{name}.weight", (inputs, outputs))
        return {"kernel": weight, "bias": self.get(f"{name}.bias", (outputs,))}

    def norm(self, name: str, width: int) -> dict[str, np.ndarray]:
        return {
            "scale": self.get(f"{name}.weight", (width,)),
            "bias": self.get(f"{name}.bias", (width,)),
        }

    def require_all_used(self) -> None:
        """Raise ValueError if a tensor that contributes to actions was not used."""
        rest = [name for name in sorted(self._tensors) if name not in self._used]
        if unknown := [name for name in rest if not UNUSED.fullmatch(name)]:
            raise ValueError(
                f"tensor {unknown[0]} is of another model: this one has {len(self._used)} tensors"
            )


def _block(arrays: _Arrays, name: str, width: int, heads: int) -> dict[str, Any]:
    """Return the parameters of a `GPTBlock`."""
    joined = arrays.convolution(f"{name}.attn.c_attn", width, 3 * width)
    out = arrays.convolution(f"{name}.attn.c_proj", width, width)
    attention: dict[str, Any] = {
        part: {
            "kernel": joined["kernel"][:, at : at + width].reshape(width, heads, -1),
            "bias": joined["bias"][at : at + width].reshape(heads, -1),
        }
        for part, at in (("query", 0), ("key", width), ("value", 2 * width))
    }
    attention["out"] = {"kernel": out["kernel"].reshape(heads, -1, width), "bias": out["bias"]}
    return {
        "LayerNorm_0": arrays.norm(f"{name}.ln_1", width),
        "MultiHeadDotProductAttention_0": attention,
        "LayerNorm_1": arrays.norm(f"{name}.ln_2", width),
        "Dense_0": arrays.convolution(f"{name}.mlp.c_fc", width, 4 * width),
        "Dense_1": arrays.convolution(f"{name}.mlp.c_proj", 4 * width, width),
    }


def _filled(shapes: Any, converted: Any, name: str = "") -> Any:
    """Return parameters of these shapes; where none was converted, a normalizer's first values."""
    if not isinstance(shapes, Mapping):
        value = float(name == "variance") if converted is None else converted
        return jnp.broadcast_to(jnp.asarray(value, shapes.dtype), shapes.shape)
    inner = converted or {}
    assert inner.keys() <= shapes.keys()
    return {child: _filled(shape, inner.get(child), child) for child, shape in shapes.items()}
