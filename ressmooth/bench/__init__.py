"""`ressmooth bench`: ratios of two things timed together, on the machine at hand."""
