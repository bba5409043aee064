"""The paper's experiments, built from the library's public parts."""
