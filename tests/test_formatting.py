"""How scores are written."""

import math

import pytest

from gtrxl_jax.formatting import format_number, format_numbers


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.5, 3, "0.500"),
        (-157.3421, 3, "-157.342"),
        (1234.5, 2, "1,234.50"),
        (12345, 0, "12,345"),
        (0.0, 3, "0.000"),
        (0.01234, 3, "0.012"),
        (0.001234, 3, "0.00123"),
        (0.035, 2, "0.04"),
        (-0.00099, 2, "-0.00099"),
        (3e-6, 3, "3.00e-06"),
        (3e-6, 2, "3.0e-06"),
        (3e-6, 0, "3e-06"),
        (math.nan, 3, "nan"),
        (-math.inf, 3, "-inf"),
    ],
)
def test_number(value, digits, text):
    assert format_number(value, digits) == text


def test_numbers_have_the_decimals_of_the_largest():
    assert format_numbers([0.998, 1e-19, 1.0]) == ["0.998", "0.000", "1.000"]
    assert format_numbers([3e-6, 1e-6, math.nan]) == ["3.00e-06", "1.00e-06", "nan"]
    assert format_numbers([0.012, -0.001, 0.0]) == ["0.012", "-0.001", "0.000"]
    assert format_numbers([0.0012, -0.01, 0.0], 2) == ["0.00", "-0.01", "0.00"]
    assert format_numbers([0.0012, 0.0]) == ["0.00120", "0.00000"]
    assert format_numbers([]) == []
