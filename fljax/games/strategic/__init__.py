"""Games in strategic form: profiles of strategies that are played, gains of deviations with bounds, and equilibria."""
