"""From a module to its graph: who asks, and the jailed process in which the module is followed."""
