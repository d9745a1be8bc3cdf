"""What a person looks at while a job runs and after it: the panel on the terminal, its summary.

It reads what the tasks say of themselves and the output directory, and knows no strategy.
"""
