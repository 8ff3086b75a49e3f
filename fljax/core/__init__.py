"""Python and pytrees: what every other package needs, without a word of federated learning."""
