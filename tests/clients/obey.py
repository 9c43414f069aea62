"""Executes commands that a test sends to a client on stdin, and prints one line for each.

The commands are `total`, `alloc BYTES`, `free` and `launch N`. The answer is the command's result, `ok`, or
the error's name."""
import sys


def obey(commands, name_of):
    """Executes the commands by name; `name_of(error)` returns the answer for an exception."""
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *arguments = line.split()
        try:
            answer = commands[verb](*map(int, arguments)) or "ok"
        except Exception as error:  # Each client has its own exceptions.
            answer = name_of(error)
        print(answer, flush=True)


def name_of(error):
    """Returns CUDA_ERROR_OUT_OF_MEMORY if the error's text contains that name, otherwise the text."""
    text = str(error).replace("\n", " ")
    return "CUDA_ERROR_OUT_OF_MEMORY" if "OUT_OF_MEMORY" in text else text
