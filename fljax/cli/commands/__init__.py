"""The commands, one file for each or for those of one kind."""
