"""What an experiment is made of: a config or Python values become a Setup, plans and measurements."""
