//! Products, linears and attention.

use crate::timing::{group, precisions, resident, scaled, time_at};
use criterion::{Criterion, Throughput};
use kiln::graph::{AttentionAttrs, Builder, DType, Graph, GraphError, Op, TensorType, ValueId};
use kiln::session::Session;

/// (name, M, K, N), each product x (M, K) · w (K, N): square ones, then those of the three models.
const PRODUCTS: [(&str, [usize; 3]); 8] = [
    ("square", [1024, 1024, 1024]),
    ("square", [2048, 2048, 2048]),
    ("square", [4096, 4096, 4096]),
    ("gptlite qkv", [2048, 768, 2304]),
    ("gptlite ffwd up", [2048, 768, 3072]),
    ("gptlite ffwd down", [2048, 3072, 768]),
    ("deep", [2048, 256, 256]),
    ("wide", [2048, 8192, 8192]),
];

pub fn matmul(c: &mut Criterion, session: &Session) {
    let mut group = group(c, "matmul", session);
    for (dtype, precision, name) in precisions(session) {
        for (of, size) in PRODUCTS {
            let [m, k, n] = size.map(|d| scaled(session, d, 16));
            let graph = product(dtype, [m, k, n]).expect("the sizes fit");
            let throughput = Throughput::Elements((m * k * n) as u64);
            let words = format!("{name}/{of}/{m}x{k}x{n}");
            time_at(&mut group, session, words, throughput, &graph, precision);
        }
    }
}

fn product(dtype: DType, [m, k, n]: [usize; 3]) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let x = resident(&mut b, "x", TensorType::new(dtype, [m, k]))?;
    let w = resident(&mut b, "w", TensorType::new(dtype, [k, n]))?;
    let y = b.matmul(x, w)?;
    b.output_kept("y", y)?;
    b.finish()
}

/// What follows a linear's product in the same kernel.
const EPILOGUES: [&str; 6] = ["none", "bias", "bias relu", "bias gelu", "bias residual", "bias relu residual"];

pub fn linear(c: &mut Criterion, session: &Session) {
    let mut group = group(c, "linear", session);
    let [m, k, n] = [2048, 768, 3072].map(|d| scaled(session, d, 16));
    for (dtype, precision, name) in precisions(session) {
        for epilogue in EPILOGUES {
            let graph = linear_with(dtype, [m, k, n], epilogue).expect("the sizes fit");
            let throughput = Throughput::Elements((m * k * n) as u64);
            let words = format!("{name}/{epilogue}/{m}x{k}x{n}");
            time_at(&mut group, session, words, throughput, &graph, precision);
        }
    }
}

fn linear_with(dtype: DType, [m, k, n]: [usize; 3], epilogue: &str) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let x = resident(&mut b, "x", TensorType::new(dtype, [m, k]))?;
    let weight = b.parameter("weight", TensorType::new(dtype, [n, k]))?;
    let bias = match epilogue.contains("bias") {
        true => Some(b.parameter("bias", TensorType::new(dtype, [n]))?),
        false => None,
    };
    let mut y = b.linear(x, weight, bias)?;
    if epilogue.contains("relu") {
        y = b.relu(y)?;
    }
    if epilogue.contains("gelu") {
        y = b.gelu_tanh(y)?;
    }
    if epilogue.contains("residual") {
        let residual = resident(&mut b, "residual", TensorType::new(dtype, [m, n]))?;
        y = b.add(y, residual)?;
    }
    b.output_kept("y", y)?;
    b.finish()
}

pub fn attention(c: &mut Criterion, session: &Session) {
    let mut group = group(c, "attention", session);
    let (heads, size) = if session.caps().cpu { (2, 32) } else { (12, 64) };
    for (dtype, precision, name) in precisions(session) {
        for rows in [512, 2048] {
            let rows = scaled(session, rows, 16);
            for backward in [false, true] {
                let graph = attend(dtype, rows, heads, size, backward).expect("the sizes fit");
                // two products forward, five backward, each over half of the square
                let products = if backward { 5 } else { 2 };
                let adds = products * heads * size * rows * (rows + 1) / 2;
                let pass = if backward { "backward" } else { "forward" };
                let words = format!("{name}/causal {pass}/{heads}x{rows}x{size}");
                time_at(&mut group, session, words, Throughput::Elements(adds as u64), &graph, precision);
            }
        }
    }
}

fn attend(dtype: DType, rows: usize, heads: usize, size: usize, backward: bool) -> Result<Graph, GraphError> {
    let width = heads * size;
    let mut b = Builder::new();
    let mut operand = |name: &str| resident(&mut b, name, TensorType::new(dtype, [1, rows, width]));
    let mut inputs = vec![operand("q")?, operand("k")?, operand("v")?];
    let scale = (size as f32).powf(-0.5);
    if !backward {
        let out = b.attention(inputs[0], inputs[1], inputs[2], heads, scale, true, None, None)?;
        b.output_kept("out", out)?;
        return b.finish();
    }
    inputs.push(operand("out")?);
    inputs.push(resident(&mut b, "lse", TensorType::new(DType::F32, [1, heads, rows]))?);
    inputs.push(resident(&mut b, "dout", TensorType::new(dtype, [1, rows, width]))?);
    let attrs = AttentionAttrs { heads, scale: scale.into(), causal: true, mask: false, lengths: false, dropout: None };
    let node = b.op(Op::AttentionGrad(attrs), &inputs)?.node;
    for (output, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
        b.output_kept(name, ValueId { node, output })?;
    }
    b.finish()
}
