"""What joins engine, scorer and search: answers, searches and their scores."""
