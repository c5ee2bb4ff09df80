"""Asks `flash-indexer serve --demo` which engine holds a prompt of the tokens 1 to 64."""

from flash_indexer import Client

with Client("http://127.0.0.1:8090") as client:
    for pod, score in client.score("demo", range(1, 65)).pods.items():
        print(f"engine {pod} holds {score.held_blocks} of 4 blocks ({score.trust})")
