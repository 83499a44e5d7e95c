"""PyTorch's times of the seed's three models in f32 with TF32 off: inference, or whole training steps.

python models.py [--phase infer|train] [--models gptlite,deep,wide]
                 [--variants eager,graph,eager_fused,graph_fused] [--runs 30]

Prints one JSON line per cell: median and least milliseconds by CUDA events, peak MiB, seconds of the first run.
"fused" is one QKV linear and scaled_dot_product_attention; the others are the seed's form, separate heads with a
materialised mask. A training step is the seed's: dropout 0.1 in GPTlite, softmax and then cross entropy of that,
backward, Adam with lr 2e-4 and betas (0.5, 0.5).
"""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
DROPOUT = 0.1


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


class Block(nn.Module):
    def __init__(self, width, heads, block, attention):
        super().__init__()
        self.sa = attention(width, heads, block)
        self.ffwd = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT))
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class GPTlite(nn.Module):
    def __init__(self, attention, vocab=65, layers=12, width=768, heads=12, block=2048):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads, block, attention) for _ in range(layers)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.ln(self.blocks(x))).permute(0, 2, 1)


def dnn(width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


def build(model, variant):
    """A network, its input and a class for each of its rows or positions."""
    if model == "gptlite":
        attention = FusedHeads if variant.endswith("fused") else SeparateHeads
        tokens, targets = (torch.randint(0, 65, (1, 2048), device=DEVICE) for _ in range(2))
        return GPTlite(attention), tokens, targets
    width, depth = {"deep": (256, 2048), "wide": (8192, 3)}[model]
    return dnn(width, depth), torch.randn(2048, width, device=DEVICE), torch.randint(0, width, (2048,), device=DEVICE)


def infer(net, x):
    net.eval()

    @torch.no_grad()
    def step():
        net(x)

    return step


def train(net, x, targets, capturable):
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.5), capturable=capturable)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(F.softmax(net(x), 1), targets)
        loss.backward()
        optimizer.step()

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


def cell(phase, model, variant, runs):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    net, x, targets = build(model, variant)
    net = net.to(DEVICE)
    graph = variant.startswith("graph")
    step = infer(net, x) if phase == "infer" else train(net, x, targets, graph)
    begin = time.time()
    step()
    torch.cuda.synchronize()
    first = time.time() - begin
    if graph:
        step = captured(step)
    times = []
    for i in range(runs + 10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        if i >= 10:
            times.append(start.elapsed_time(end))
    times.sort()
    row = {"phase": phase, "model": model, "variant": variant}
    row |= {"ms": round(times[len(times) // 2], 3), "min_ms": round(times[0], 3)}
    row |= {"peak_mib": round(torch.cuda.max_memory_allocated() / 2**20), "first_s": round(first, 2)}
    row |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", choices=["infer", "train"], default="infer")
    parser.add_argument("--models", default="gptlite,deep,wide")
    parser.add_argument("--variants", default="eager,graph,eager_fused,graph_fused")
    parser.add_argument("--runs", type=int, default=30)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    for model in args.models.split(","):
        for variant in args.variants.split(","):
            if model == "gptlite" or not variant.endswith("fused"):
                cell(args.phase, model, variant, args.runs)


main()
