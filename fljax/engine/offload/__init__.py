"""Runs whose examples or client states stay on the host: only the clients that train are moved to the devices."""
