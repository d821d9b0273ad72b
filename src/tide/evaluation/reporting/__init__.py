"""What is made of runs: tables, figures, landscapes, and our metrics beside published ones."""
