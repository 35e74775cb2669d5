"""What the dashboard knows: samples, step records, marks, verdicts, as plain data."""
