"""Arrays that a user gives."""

import jax
import numpy as np

# An array of JAX, which may be traced, or of NumPy.
AnyArray = jax.Array | np.ndarray
