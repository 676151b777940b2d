"""What it may look like. Try for ten minutes before you look."""
