"""The settings of every run, online and offline, and configs as JSON."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gtrxl_jax import __version__
from gtrxl_jax.ops.distributions import SELECTIONS
from gtrxl_jax.validation import MOST_STEPS, choice, number, require_choice, validate

Config = TypeVar("Config")

CONFIGS: dict[str, type] = {}
"""The class of the configs of each kind of run, for `with_defaults`."""


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on fresh episodes. For the unit of steps, see `RunConfig`."""

    episodes: int = 256
    """Number of episodes of each evaluation, played in parallel."""
    interval: int = number(200_000, at_least=0, at_most=MOST_STEPS)
    """Steps between evaluations. 0: evaluate only at the end."""
    actions: str = choice("mode", SELECTIONS)
    """How actions are chosen. mode: the most likely ones. sample: samples, as in training."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, written in the background. For the unit of steps, see `RunConfig`."""

    interval: int = number(100_000, at_least=0, at_most=MOST_STEPS)
    """Steps between checkpoints. 0: save only at the end and on interruption."""
    keep: int = 3
    """Number of most recent checkpoints to keep."""
    best: str = ""
    """A score, such as evaluation/success; the checkpoint with its best value is also kept."""
    best_is: str = choice("max", ("max", "min"))
    """max: higher scores are better. min: lower scores are better."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Iterations, seeds and devices of a run.

    Steps are environment steps in online runs, and updates in offline runs.
    """

    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    updates_per_iteration: int = 10
    """Updates per iteration, a single program; metrics are written after each iteration."""
    seed: int = number(0, at_least=0)
    """The first seed. A run is deterministic given its config, including the seed."""
    num_seeds: int = 1
    """Seeds trained in one program: seed, seed + 1, ..."""
    devices: int = number(0, at_least=0)
    """Number of devices that share the batch, whose size it must divide. 0: all."""
    parameter_shards: int = 1
    """Number of neighboring devices over which one copy of the parameters and the optimizer's
    state is split. 1: every device has a copy."""
    on_divergence: str = choice("stop", ("stop", "continue"))
    """When a seed diverges. stop: end the run. continue: report it, and train the other seeds."""
    init_from: str = ""
    """Folder of a trained run, or an address on the hub, whose parameters the run starts from. The
    rest, such as the optimizer's state, starts fresh. Once it has a checkpoint, a run resumes from
    it."""
    init_only: tuple[str, ...] = ()
    """Patterns of the paths of the parameters that init_from provides, such as 'core/*'; all by
    default. The others are initialized as usual."""

    def check(self) -> None:
        """Raise ValueError if a seed exceeds 31 bits, or fields are inconsistent."""
        if self.seed + self.num_seeds > 2**31:
            raise ValueError(f"seed must leave all seeds below 2**31, not {self.seed}")
        if self.init_only and not self.init_from:
            raise ValueError(
                f"init_only {' '.join(self.init_only)} selects parameters of another run: set "
                "init_from to its folder"
            )


def to_json(kind: str, config: Any) -> str:
    """Serialize a config, with its kind of run and the version of the library."""
    origin = {"kind": kind, "version": __version__}
    return json.dumps(origin | dataclasses.asdict(config), indent=2) + "\n"


def run_kind(fields: Mapping[str, Any]) -> str:
    """Return the kind of run of a config, the JSON object of `to_json`.

    Raises:
      ValueError: if it is not the config of a run.
    """
    if not isinstance(fields.get("kind"), str):
        raise ValueError('the config is not of a run: it has no "kind"')
    return fields["kind"]


def from_json(kind: str, of: type[Config], text: str) -> Config:
    """Deserialize and validate a config.

    Args:
      kind: the expected kind of run.
      of: class of the config.
      text: the result of `to_json`.

    Raises:
      ValueError: if the text is not a config of that kind, or a field is unknown or out of range.
      TypeError: if a value does not have the type of its field.
    """
    parsed = parse_json(text, "the config")
    if not isinstance(parsed, dict) or parsed.pop("kind", None) != kind:
        raise ValueError(f'the config is not of an {kind} run: its "kind" is not "{kind}"')
    parsed.pop("version", None)
    return from_fields(of, parsed)


def from_fields(of: type[Config], fields: Mapping[str, Any]) -> Config:
    """Create and validate a config from its fields, nested dicts; raises as `from_json` does."""
    config: Config = _build(of, fields, "")
    validate(config)
    return config


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parsed config with the default of each field that it lacks, as older ones do.

    Args:
      fields: the JSON object of `to_json`; unchanged for a kind that is not in `CONFIGS`.
    """
    kind = CONFIGS.get(str(fields.get("kind")))
    return _fill_in(kind, fields) if kind else dict(fields)


def _fill_in(kind: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    with contextlib.suppress(ValueError, TypeError):  # The config's module may not be imported.
        kind = _select_class(kind, fields)
    completed = dict(fields)
    for field in dataclasses.fields(kind):
        if field.name in completed:
            nested = completed[field.name]
            inner = get_type_hints(kind)[field.name]
            if dataclasses.is_dataclass(inner) and isinstance(nested, dict):
                completed[field.name] = _fill_in(inner, nested)
        elif field.default is not dataclasses.MISSING:
            completed[field.name] = _as_json(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            completed[field.name] = _as_json(field.default_factory())
    return completed


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=dataclasses.asdict))


def _select_class(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Return the class that the field `name` selects, for a kind of config that has several."""
    if not hasattr(kind, "named"):
        return kind
    return kind.named(fields["name"]) if "name" in fields else kind.named()


def parse_json(text: str, source: str) -> Any:
    """Return the value of a JSON text; raise ValueError, which names its source, if it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{source} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{source} is nested too deeply") from None


def _build(kind: Any, fields: Any, prefix: str) -> Any:
    if not isinstance(fields, dict):
        raise TypeError(f"{prefix.rstrip('.')} must have fields, not be {fields!r}")
    kind = _select_class(kind, fields)
    hints = get_type_hints(kind)
    for name in fields:
        require_choice("config field", prefix + name, [prefix + hint for hint in hints])
    return kind(**{name: _value(hints[name], fields[name], prefix + name) for name in fields})


def _value(kind: Any, value: Any, name: str) -> Any:
    """Restore tuples and configs, for which JSON has no types."""
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{name}.")
    if isinstance(value, list) and tuple in [get_origin(k) for k in (kind, *get_args(kind))]:
        return tuple(value)
    if isinstance(value, dict) and get_origin(kind) is dict:
        return {key: _value(get_args(kind)[1], item, name) for key, item in value.items()}
    return value
