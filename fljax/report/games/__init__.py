"""Pages about games of clients."""
