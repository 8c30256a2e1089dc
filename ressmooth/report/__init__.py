"""Present recorded studies: comparisons, verdicts, tables, figures and an HTML report."""
