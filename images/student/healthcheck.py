"""Exit status 0 if the single-user server answers; the engine shows the rest as unhealthy."""

import os
import sys
import urllib.error
import urllib.request
from urllib.parse import urlsplit

TIMEOUT_S = 5


def main() -> int:
    """Ask the server for its version, which needs no token."""
    served = urlsplit(os.environ.get("JUPYTERHUB_SERVICE_URL", "http://127.0.0.1:8888/"))
    url = f"http://127.0.0.1:{served.port or 8888}{served.path.rstrip('/')}/api"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S):
            return 0
    except urllib.error.HTTPError as error:
        return int(error.code >= 500)
    except OSError as error:
        print(f"{url}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
