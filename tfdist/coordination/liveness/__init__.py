"""Reports of what every task of a job does, and the watchdog over their steps.

Each task records what it does (`activity`), and answers other tasks that ask for it (`endpoint`).
A watchdog in each training task (`watchdog`) finds that the job makes no step. It then asks all
tasks, writes a hang report with their Python stacks (`hang_report`), and ends the task.
"""
