"""What a person or a program looks at while a job runs, and after it.

It reads what the tasks say of themselves and the output directory, and knows no strategy.
"""
