"""How scores are written: in progress, result lines, model cards and tables."""

import math
from collections.abc import Sequence


def format_number(value: float, digits: int = 3) -> str:
    """Format with `digits` decimals, as in 1,234.500; below 0.01, with as many significant digits.

    Only 0 is thus shown as 0.000: smaller numbers are as 0.00123 or 3.00e-06.
    """
    return format_numbers([value], digits)[0]


def format_numbers(values: Sequence[float], digits: int = 3) -> list[str]:
    """Format the numbers of one quantity, such as the ends of an interval, with equal decimals.

    Their decimals suit the largest of them, see `format_number`.
    """
    largest = max((abs(x) for x in values if math.isfinite(x)), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest else 0
    if exponent < -4:
        return [f"{x:.{max(digits - 1, 0)}e}" for x in values]
    decimals = digits if exponent >= -2 else digits - 1 - exponent
    return [f"{x:,.{decimals}f}" for x in values]
