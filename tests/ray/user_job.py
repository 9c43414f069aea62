"""Runs tasks on the node of test_user.py, and writes what became of them to a file, as JSON."""

import json
import pathlib
import sys

import ray

import gpu


@ray.remote(max_retries=0)
def try_sizes(*sizes):
    return gpu.try_sizes(*sizes)


def ask(settings):
    """Return the facts of a worker with settings while it lives, or why there is none."""

    @ray.remote(num_gpus=0.25, runtime_env={"gcgroup": settings})
    class Actor:
        def facts(self):
            return gpu.facts()

    actor = Actor.remote()
    try:
        return actor, ray.get(actor.facts.remote())
    except ray.exceptions.ActorDiedError as error:
        return actor, str(error)


ray.init(address=sys.argv[1], log_to_driver=False)
allowed, refused = ask({"priority": 10}), ask({"priority": 4})
results = {
    "default": ray.get(try_sizes.options(num_gpus=0.25).remote(3 << 30, 4 << 30)),
    "allowed": allowed[1],
    "refused": refused[1],
}
path = pathlib.Path(sys.argv[2])
path.with_suffix(".new").write_text(json.dumps(results))
path.with_suffix(".new").rename(path)
# The test reads the limits meanwhile.
sys.stdin.readline()
