"""The spawner's requests to the pool over httpx: to an application or a fake, without a socket."""

import httpx

from miglab_spawner.backends import NoAnswer, NotConnected, PoolAnswer, PoolRequest, Send


def over(client: httpx.AsyncClient) -> Send:
    """What a `PoolClient` sends its requests with."""

    async def send(request: PoolRequest) -> PoolAnswer:
        try:
            answer = await client.request(
                request.method,
                request.url,
                params=request.params,
                content=request.body,
                headers=request.headers,
                timeout=request.timeout_s,
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotConnected(str(error)) from error
        except httpx.TransportError as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        return PoolAnswer(answer.status_code, answer.content, answer.reason_phrase)

    return send
