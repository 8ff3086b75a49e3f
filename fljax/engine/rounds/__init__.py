"""One round of any algorithm and its evaluation, as pure functions."""
