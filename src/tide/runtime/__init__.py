"""Joins engine, scorer and search: answers, searches and their scores."""
