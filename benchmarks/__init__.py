"""Scripts that print the figures of the pages; the tests import `writing`."""
