"""Id of the node with an address, from a program on a node."""

import json
import sys

import ray


def main() -> None:
    """Print the id of the node that the command line names."""
    ray.init(log_to_driver=False)
    print(
        json.dumps(
            next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == sys.argv[1] and node["Alive"])
        )
    )


if __name__ == "__main__":
    main()
