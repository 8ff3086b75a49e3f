"""Runs whose examples or client states stay on the host: only the clients that train are moved to the devices.

A round is several programs: select, train some rows, finish. A block of clients is an ordinary ``Federation``, whose
examples are the rows that they need, so the same functions run on it (``choose``, ``train`` and ``close`` in
``fljax.engine.rounds.round``). JAX's calls return before the devices have computed: the host reads the next block
meanwhile. The states of clients are arrays of NumPy that a run writes in place.
"""
