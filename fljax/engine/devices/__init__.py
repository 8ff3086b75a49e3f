"""Devices: what they are, what they hold, and how clients are computed on them.

- ``layout``: the ``Layout`` of a run (how many clients and runs are side by side, on which devices), and where devices
  hold arrays. ``resolve`` in ``fljax.engine.programs.execution`` decides it.
- ``client_mapping``: deals clients to devices, and computes a function of one client for all of them.
- ``eager``: the same in Python loops, where ``jax.jit`` is off.
- ``jaxprs`` and ``memory``: what a program tells before it runs. ``cores``: the cores of a CPU as devices.
"""
