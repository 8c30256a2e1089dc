"""`ressmooth bench`: ratios of two things that are timed together on this machine."""
