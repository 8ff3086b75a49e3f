"""Data sets by name: readers of upstream's files, generated sets, and other packages that have data sets."""
