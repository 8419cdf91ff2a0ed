"""What of Ray has no public name, all in one place: Ray may change it with any version."""

from __future__ import annotations

from ray._private import ray_constants, services, worker


def address_of_this_machine() -> str:
    """HOST:PORT of the head of the cluster that this machine is of. Raises `ConnectionError` where there is none.

    `ray.init(address="auto")` finds it, too, but does not say what it found before it has joined, and tries for minutes
    where that does not answer any more.
    """
    return str(services.get_ray_address_from_environment("auto", None))


def stay_on_loopback() -> None:
    """A cluster at a loopback address is joined there. Ray would go for the machine's outer address, where nobody
    listens; the variable RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER says the same, but is read when Ray is imported."""
    ray_constants.ENABLE_RAY_CLUSTER = False


def print_nothing() -> None:
    """What Ray hears of lost processes is printed to stdout, among our answers, whatever `log_to_driver` says."""
    worker.print_to_stdstream = lambda *lines, **how: None
