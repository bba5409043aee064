"""The paper's experiments, on the library's own parts."""
