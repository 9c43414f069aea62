"""The lead that the clients are on: commands on stdin, answered a line each.

`total`, `alloc BYTES`, `free`, `launch N`. An answer is what the command gives, `ok`, or the error's name."""
import sys


def obey(commands, name_of):
    """Answers each line by the command of that name; `name_of(error)` is the answer to what it raises."""
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *arguments = line.split()
        try:
            answer = commands[verb](*map(int, arguments)) or "ok"
        except Exception as error:  # each client has errors of its own
            answer = name_of(error)
        print(answer, flush=True)


def name_of(error):
    """An error's text, or the name of the one that matters."""
    text = str(error).replace("\n", " ")
    return "CUDA_ERROR_OUT_OF_MEMORY" if "OUT_OF_MEMORY" in text else text
