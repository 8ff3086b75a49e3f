"""What decides a run's numbers beside its config and its data: settings of JAX, and the code of one's own functions."""
