"""Arrays that a user gives or gets."""

from typing import TYPE_CHECKING

import jax
import numpy as np

# An array of JAX, which may be traced, or of NumPy.
AnyArray = jax.Array | np.ndarray

# NumPy makes a number of an array without axes. For type checkers it is an array, too.
if TYPE_CHECKING:
    NumpyArray = np.ndarray
else:
    NumpyArray = np.ndarray | np.generic
