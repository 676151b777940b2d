"""What you write."""
