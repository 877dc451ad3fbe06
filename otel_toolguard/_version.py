"""The one version of the core and of every adapter."""

__version__ = "0.1.0"
