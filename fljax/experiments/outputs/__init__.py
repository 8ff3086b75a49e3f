"""What an experiment leaves: files, models and messages, and how they are opened again."""
