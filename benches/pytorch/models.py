"""PyTorch's times of the seed's three models, inference or whole training steps, one cell of the benchmark a process.

python models.py --model gptlite --phase infer --variant sdpa-graph --precision f32
                 [--weights F.safetensors] [--rows N --width N --depth N --heads N --vocab N] [--device cuda|cpu] [--runs 30]
                 [--pci 0000:61:00.0] [--hold]

Variants: eager, graph (a CUDA graph), compile, reduce-overhead, max-autotune (modes of torch.compile), the last three with
-fullgraph too; before each, sdpa- takes one linear for Q, K and V and scaled_dot_product_attention in place of the seed's
form, separate heads with a materialised mask. Precisions: f32 with TF32 off, tf32, and f16: inference with weights in f16,
training by autocast without a loss scale. --pci takes the GPU at an address, where a machine has several; --hold waits
after the first run until its standard input ends, so that programs compile beside each other and are timed one by one.

A training step is the seed's: dropout 0.1 in GPTlite, softmax and then cross entropy of that, backward, Adam with lr 2e-4
and betas (0.5, 0.5). Prints lines of JSON, which `cargo xtask bench` reads: the first run's seconds, then the cell: median,
95 % and least milliseconds by the host's clock around a synchronised run, per run of several in flight, and by CUDA events,
each with random inputs that take turns, after runs that warm up: a third as many in flight, at least 1 s of them; peak MiB.
"""

import argparse
import ctypes
import json
import struct
import sys
import time
from statistics import median

try:
    import torch
except ModuleNotFoundError as error:
    raise SystemExit(f"{sys.executable} has no PyTorch ({error}); name a Python that has with --python") from None
import torch.nn as nn
import torch.nn.functional as F

DROPOUT = 0.1
BATCHES = 3
# seconds of runs in flight that warm up, at least, and how many are in flight at most: a GPU that idled has low clocks,
# and keeps them for seconds if each run is waited for
WARM_UP = 1.0
IN_FLIGHT = 8


class Head(nn.Module):
    def __init__(self, width, size, block):
        super().__init__()
        self.key = nn.Linear(width, size, bias=False)
        self.query = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block, block)), persistent=False)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        s, e = x.shape[1:]
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * e**-0.5
        scores = scores.masked_fill(self.tril[:s, :s] == 0, float("-inf"))
        return self.dropout(F.softmax(scores, -1)) @ self.value(x)


class SeparateHeads(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads, block) for _ in range(heads))
        self.proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([head(x) for head in self.heads], -1)))


class FusedHeads(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, e // self.heads).permute(2, 0, 3, 1, 4)
        p = DROPOUT if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=e**-0.5, dropout_p=p)
        return self.dropout(self.proj(out.transpose(1, 2).reshape(b, s, e)))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT))

    def forward(self, x):
        return self.net(x)


class Block(nn.Module):
    def __init__(self, width, heads, block, attention):
        super().__init__()
        self.sa = attention(width, heads, block)
        self.ffwd = FeedForward(width)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class GPTlite(nn.Module):
    def __init__(self, attention, vocab, layers, width, heads, block):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab, width)
        self.position_embedding_table = nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads, block, attention) for _ in range(layers)))
        self.ln = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding_table(tokens) + self.position_embedding_table(positions)
        return self.lm_head(self.ln(self.blocks(x))).permute(0, 2, 1)


class Dnn(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def read_safetensors(path):
    """The f32 tensors of a file, without the safetensors package, which not every machine with PyTorch has."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", f"{name} is {entry['dtype']}, expected F32"
            begin, end = entry["data_offsets"]
            tensors[name] = data[begin:end].view(torch.float32).reshape(entry["shape"])
    return tensors


def with_fused_heads(tensors, heads):
    """The heads' weights, of which there are (D, E) each, as one (3 E, E)."""
    fused = {name: tensor for name, tensor in tensors.items() if ".sa.heads." not in name}
    for prefix in sorted({name.split(".sa.heads.")[0] for name in tensors if ".sa.heads." in name}):
        parts = [
            tensors[f"{prefix}.sa.heads.{head}.{part}.weight"] for part in ("query", "key", "value") for head in range(heads)
        ]
        fused[f"{prefix}.sa.qkv.weight"] = torch.cat(parts)
    return fused


def build(args):
    """A network, and random batches of its input and a class for each of its rows or positions."""
    sdpa = args.variant.startswith("sdpa-")
    if args.model == "gptlite":
        attention = FusedHeads if sdpa else SeparateHeads
        net = GPTlite(attention, args.vocab, args.depth, args.width, args.heads, args.rows)
        batches = [[torch.randint(0, args.vocab, (1, args.rows)) for _ in range(2)] for _ in range(BATCHES)]
    else:
        net = Dnn(args.width, args.depth)
        batches = [
            [torch.randn(args.rows, args.width), torch.randint(0, args.width, (args.rows,))] for _ in range(BATCHES)
        ]
    if args.weights:
        tensors = read_safetensors(args.weights)
        net.load_state_dict(with_fused_heads(tensors, args.heads) if sdpa else tensors, strict=True)
    return net, batches


def infer(net, inputs):
    net.eval()

    @torch.no_grad()
    def step():
        return net(inputs[0])

    return step


def train(net, inputs, args, graph):
    net.train()
    # capturable keeps the count of steps on the device, as a graph needs it
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.5), capturable=graph)

    def step():
        optimizer.zero_grad()
        with torch.autocast(args.device, dtype=torch.float16, enabled=args.precision == "f16"):
            loss = F.cross_entropy(F.softmax(net(inputs[0]), 1), inputs[1])
        loss.backward()
        optimizer.step()
        return loss

    return step


def captured(step):
    """The step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compiled(net, variant):
    """The network as torch.compile makes it; no difference for other variants."""
    mode = variant.removesuffix("-fullgraph")
    if mode not in ("compile", "reduce-overhead", "max-autotune"):
        return net
    return torch.compile(net, mode="default" if mode == "compile" else mode, fullgraph=variant.endswith("-fullgraph"))


def take(pci):
    """Makes the GPU at a PCI address the current one."""
    torch.cuda.init()
    address = ctypes.create_string_buffer(16)
    found = []
    for index in range(torch.cuda.device_count()):
        code = ctypes.CDLL("libcuda.so.1").cuDeviceGetPCIBusId(address, len(address), index)
        assert code == 0, f"cuDeviceGetPCIBusId of device {index} gave {code}"
        found.append(address.value.decode().lower())
    if pci not in found:
        raise SystemExit(f"no GPU at {pci}; CUDA shows {', '.join(found) or 'none'}")
    torch.cuda.set_device(found.index(pci))


def kept_by_95(ascending):
    """The least that 95 % do not exceed (nearest rank)."""
    return ascending[-(-95 * len(ascending) // 100) - 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["gptlite", "deep", "wide"], required=True)
    parser.add_argument("--phase", choices=["infer", "train"], default="infer")
    parser.add_argument("--variant", default="eager")
    parser.add_argument("--precision", choices=["f32", "tf32", "f16"], default="f32")
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--pci", type=str.lower)
    parser.add_argument("--hold", action="store_true")
    for name in ("rows", "width", "depth", "heads", "vocab"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    full = {"gptlite": (2048, 768, 12, 12, 65), "deep": (2048, 256, 2048, 1, 1), "wide": (2048, 8192, 3, 1, 1)}
    for name, size in zip(("rows", "width", "depth", "heads", "vocab"), full[args.model], strict=True):
        setattr(args, name, getattr(args, name) or size)
    cuda = args.device == "cuda"
    if cuda:
        # the host only builds and copies: threads of programs that begin beside each other wait for each other at it
        torch.set_num_threads(1)
    if args.pci:
        take(args.pci)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.precision == "tf32"

    net, batches = build(args)
    net = net.to(args.device)
    batches = [[tensor.to(args.device) for tensor in batch] for batch in batches]
    if args.phase == "infer" and args.precision == "f16":
        net = net.half()
        batches = [[t.half() if t.is_floating_point() else t for t in batch] for batch in batches]
    # where a run reads its batch: a graph reads the same memory each time
    inputs = [tensor.clone() for tensor in batches[0]]
    variant = args.variant.removeprefix("sdpa-")
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    if cuda:
        torch.cuda.reset_peak_memory_stats()

    def place(run):
        for target, source in zip(inputs, batches[run % BATCHES], strict=True):
            target.copy_(source)
        synchronize()

    begin = time.perf_counter()
    net = compiled(net, variant)
    graph = variant == "graph"
    step = infer(net, inputs) if args.phase == "infer" else train(net, inputs, args, graph)
    loss = step()
    loss = loss.item() if args.phase == "train" else None
    if graph:
        step = captured(step)
        step()
    synchronize()
    first = time.perf_counter() - begin
    print(json.dumps({"line": "first", "seconds": round(first, 3)}), flush=True)
    if args.hold:
        sys.stdin.read()

    begun, run = time.perf_counter(), 0
    place(0)
    step()
    synchronize()
    together = max(1, min(IN_FLIGHT, int(WARM_UP / 4 / (time.perf_counter() - begun))))
    while run < args.runs // 3 or time.perf_counter() - begun < WARM_UP:
        for _ in range(together):
            step()
        synchronize()
        run += together

    walls, events = [], []
    for run in range(args.runs):
        place(run)
        if cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
        begin = time.perf_counter()
        step()
        if cuda:
            end.record()
        synchronize()
        walls.append((time.perf_counter() - begin) * 1e3)
        if cuda:
            events.append(start.elapsed_time(end))
    begin = time.perf_counter()
    for _ in range(args.runs):
        step()
    synchronize()
    in_flight = (time.perf_counter() - begin) * 1e3 / args.runs
    walls.sort()
    events.sort()
    row = {"line": "measured", "program": f"PyTorch {torch.__version__}", "runs": args.runs}
    row |= {"adapter": torch.cuda.get_device_name() if cuda else "CPU", "driver": torch.version.cuda or "", "pci": args.pci}
    row |= {"ms": median(walls), "p95_ms": kept_by_95(walls), "min_ms": walls[0], "in_flight_ms": in_flight}
    row |= {"device_ms": median(events) if cuda else None, "first_run_s": first, "loss": loss}
    # the batches that wait for their turn are not the model's
    waiting = sum(t.numel() * t.element_size() for batch in batches for t in batch)
    row |= {"peak_mib": (torch.cuda.max_memory_allocated() - waiting) / 2**20 if cuda else None}
    print(json.dumps(row), flush=True)


main()
