"""What is timed, against peers in the same run."""
