"""What a call to the Docker engine raises when the engine refuses, does not answer, or is away."""

from docker.errors import DockerException  # noqa: TID251 - one of the rooms that talk to Docker
from requests import RequestException

#: docker-py wraps some errors of its connection, and not others.
ENGINE_ERRORS = (DockerException, RequestException, OSError)
