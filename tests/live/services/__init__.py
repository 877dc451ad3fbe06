"""Real back ends on free loopback ports, with the files of collector-config/ as they are."""
