"""Runs whose examples or client states stay on the host: only the clients that train are moved to the devices.

A block of clients is an ordinary ``Federation`` of the rows that they need, so the same functions run on it. JAX's
calls return before the devices have computed: the host reads the next block meanwhile. States are written in place.
"""
