"""Shows a job while it runs and afterwards: panel, summary, curves, report.

It reads the reports of the tasks and the output directory, and depends on no strategy.
"""
