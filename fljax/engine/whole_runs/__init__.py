"""Whole runs: start, rounds, evaluation and measure of each run are one program, and only measures leave the devices.

- Runs differ in traced arguments and in their members (``Over``), so any number of them shares one compiled program.
- A program has a fixed number of rows. Rows that are not used cost nothing, so blocks of any length share it. Blocks
  end after some seconds, since the heap grows while a program runs (``UNFUSED`` in ``fljax.engine.programs.jit``).
- Devices take whole runs, and on a CPU a device computes one run after another. So the bits of a run depend neither on
  the other runs nor on its block or its device.
- Members belong to the data of a run. A client outside holds no training and validation rows there, and the algorithm
  is told that it is no member. Evaluations judge all clients.
"""
