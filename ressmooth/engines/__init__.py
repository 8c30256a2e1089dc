"""Two bodies for one brain: worker processes on this machine, or Ray Tune on a cluster."""
