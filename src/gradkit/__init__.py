"""Gradients and Jacobians of PyTorch models: right, or refused."""
