"""The untrusted child: runs one kernel file. Nothing that is trusted imports it."""
