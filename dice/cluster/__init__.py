"""Ray: verifiers and engines on many machines, behind the interfaces of the local ones. Nothing else imports Ray."""
