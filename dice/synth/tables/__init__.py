"""What the generator draws from: operators, architectures, names and phrases, as data."""
