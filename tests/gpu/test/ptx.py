"""Interprets the test kernels' PTX, one thread after the other: only the instructions they use, on a
dictionary of words. Suits kernels whose threads do not wait for each other. Where there is no GPU, no
compiler checks these kernels."""
import re


class Kernel:
    """One entry of a PTX text."""

    def __init__(self, text, name):
        text = re.sub(r"//[^\n]*", "", text)
        head, body = re.search(rf"\.entry {name}\(([^)]*)\)\s*\{{(.*?)\n\}}", text, re.S).groups()
        self.parameters = re.findall(r"\.param \.u(\d+) (\w+)", head)
        self.code, self.labels = [], {}
        for statement in re.split(r";|(?<=:)\n", body):
            statement = statement.strip()
            if statement.endswith(":"):
                self.labels[statement[:-1]] = len(self.code)
            elif statement and not statement.startswith(".reg"):
                self.code.append(statement)
        self.registers = {}
        for bits, names in re.findall(r"\.reg \.(?:pred|u(\d+))\s+([^;]+);", body):
            self.registers.update({register.strip(): int(bits or 1) for register in names.split(",")})


class Thread:
    """One run of a kernel."""

    def __init__(self, kernel, memory, arguments, clock=None, special=None):
        self.kernel, self.memory, self.clock = kernel, memory, clock
        self.parameters = dict(zip((name for _, name in kernel.parameters), arguments, strict=True))
        self.special, self.values = special or {}, {}

    def value(self, operand):
        operand = operand.strip()
        if operand == "%globaltimer":
            return next(self.clock)
        if operand in self.special:
            return self.special[operand]
        if operand.startswith("%"):
            return self.values[operand]
        return int(operand, 0)

    def address(self, operand):
        base, _, offset = operand.strip(" []").partition("+")
        return self.value(base) + int(offset or 0)

    def put(self, register, value):
        self.values[register] = value & ((1 << self.kernel.registers[register]) - 1)

    def run(self):
        """Runs the thread to its end. Returns the number of instructions."""
        at = count = 0
        while True:
            statement = self.kernel.code[at]
            at, count = at + 1, count + 1
            if guard := re.match(r"@(!?)(%\w+)\s+(.*)", statement, re.S):
                if bool(self.values[guard[2]]) == bool(guard[1]):
                    continue
                statement = guard[3]
            name, _, rest = statement.partition(" ")
            operands = [operand.strip() for operand in rest.split(",")] if rest else []
            if name == "ret":
                return count
            if name == "bra":
                at = self.kernel.labels[operands[0]]
            else:
                self.step(name.split("."), operands)

    def step(self, name, operands):
        width = int(re.sub(r"\D", "", name[-1]) or 64)
        value, put = self.value, self.put
        match name[0]:
            case "ld" if name[1] == "param":
                put(operands[0], self.parameters[operands[1].strip("[]")])
            case "ld":
                put(operands[0], self.memory.get(self.address(operands[1]), 0))
            case "st":
                self.memory[self.address(operands[0])] = value(operands[1]) & ((1 << width) - 1)
            case "mov" | "cvta" | "cvt":
                put(operands[0], value(operands[1]))
            case "add":
                put(operands[0], value(operands[1]) + value(operands[2]))
            case "sub":
                put(operands[0], value(operands[1]) - value(operands[2]))
            case "mul":
                put(operands[0], value(operands[1]) * value(operands[2]))
            case "mad":
                put(operands[0], value(operands[1]) * value(operands[2]) + value(operands[3]))
            case "shl":
                put(operands[0], value(operands[1]) << value(operands[2]))
            case "min":
                put(operands[0], min(value(operands[1]), value(operands[2])))
            case "setp":
                a, b = value(operands[1]), value(operands[2])
                put(operands[0], {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b,
                                  "ge": a >= b}[name[1]])
            case "atom":
                self.atom(name[2], operands)
            case "membar":
                pass
            case other:
                raise ValueError(f"{other} is not known")

    def atom(self, what, operands):
        at = self.address(operands[1])
        old = self.memory.get(at, 0)
        self.put(operands[0], old)
        more = [self.value(operand) for operand in operands[2:]]
        new = {"add": lambda: old + more[0], "max": lambda: max(old, more[0]),
               "cas": lambda: more[1] if old == more[0] else old}[what]()
        self.memory[at] = new & ((1 << 64) - 1)


def launch(text, name, arguments, memory, grid=1, block=1, clock=None):
    """Runs all threads. Returns the number of instructions of each."""
    kernel = Kernel(text, name)
    return [Thread(kernel, memory, arguments, clock,
                   {"%tid.x": thread, "%ctaid.x": group, "%ntid.x": block, "%nctaid.x": grid}).run()
            for group in range(grid) for thread in range(block)]
