"""How scores are written: in progress, result lines, model cards and tables."""

import math
from collections.abc import Sequence


def number(value: float, digits: int = 3) -> str:
    """Format with `digits` decimals, or more where a small number needs them: 1,234.500, 0.0123.

    At least `digits` digits are significant, so that only 0 is shown as 0.000; below 0.0001 as in
    3.00e-06.
    """
    return numbers([value], digits)[0]


def numbers(values: Sequence[float], digits: int = 3) -> list[str]:
    """Format the numbers of one quantity, such as the ends of an interval, with equal decimals.

    Their decimals suit the largest of them, see `number`.
    """
    largest = max((abs(x) for x in values if math.isfinite(x)), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest else 0
    if exponent < -4:
        return [f"{x:.{max(digits - 1, 0)}e}" for x in values]
    return [f"{x:,.{max(digits, digits - 1 - exponent)}f}" for x in values]
