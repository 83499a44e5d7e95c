"""Loads a checkpoint that kiln trained into the seed's modules, strictly, and continues a text with it greedily.

python load_checkpoint.py MODEL.safetensors CONFIG.json [--prompt TEXT] [--tokens 60]

Prints the continuation: it must be the one that `cargo run --release --example gptlite` prints for the same files and
prompt with `--temperature 0`.
"""

import argparse
import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


class Head(nn.Module):
    def __init__(self, width, size, block, scale):
        super().__init__()
        self.key = nn.Linear(width, size, bias=False)
        self.query = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block, block)), persistent=False)
        self.scale = scale

    def forward(self, x):
        s = x.shape[1]
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * self.scale
        return F.softmax(scores.masked_fill(self.tril[:s, :s] == 0, float("-inf")), -1) @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self, width, heads, block, scale):
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads, block, scale) for _ in range(heads))
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return self.net(x)


class Block(nn.Module):
    def __init__(self, width, heads, block, scale):
        super().__init__()
        self.sa = MultiHeadAttention(width, heads, block, scale)
        self.ffwd = FeedForward(width)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class GPTlite(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, heads, block = c["n_embd"], c["n_head"], c["block_size"]
        self.token_embedding_table = nn.Embedding(c["vocab_size"], width)
        self.position_embedding_table = nn.Embedding(block, width)
        scale = c["attention_scale"]
        self.blocks = nn.Sequential(*(Block(width, heads, block, scale) for _ in range(c["n_layer"])))
        self.ln = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, c["vocab_size"], bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1])
        x = self.token_embedding_table(tokens) + self.position_embedding_table(positions)
        return self.lm_head(self.ln(self.blocks(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("config")
    parser.add_argument("--prompt", default="fn ")
    parser.add_argument("--tokens", type=int, default=60)
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as file:
        config = json.load(file)
    model = GPTlite(config)
    model.load_state_dict(load_file(args.weights), strict=True)
    model.eval()
    vocabulary = config["vocab"]
    tokens = [vocabulary.index(c) for c in args.prompt]
    with torch.no_grad():
        for _ in range(args.tokens):
            logits = model(torch.tensor([tokens[-config["block_size"] :]]))
            tokens.append(int(logits[0, -1].argmax()))
    print("".join(vocabulary[t] for t in tokens))


main()
