"""The loop on the host: blocks of rounds, checkpoints, evaluations, sweeps of runs."""
