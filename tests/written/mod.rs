//! In: sizes; out: models written out with the builder, and random values for any graph. Knows the public API alone.
#![allow(dead_code, reason = "each test binary uses its own part")]

use kiln::graph::{Builder, DType, Graph, GraphError, Op, TensorType, ValueId};
use kiln::reference::{Value, evaluate_all};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

pub fn f32(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

/// Sizes of a transformer.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub batch: usize,
    pub seq: usize,
    pub width: usize,
    pub heads: usize,
    pub blocks: usize,
    pub vocab: usize,
    pub dtype: DType,
}

pub const TINY: Sizes = Sizes { batch: 2, seq: 5, width: 6, heads: 3, blocks: 1, vocab: 7, dtype: DType::F32 };

/// The seed's GPTlite, with a causal mask of its own in every head.
pub fn gptlite(s: Sizes) -> std::result::Result<Graph, GraphError> {
    let mut b = Builder::new();
    let tokens = b.input("tokens", TensorType::new(DType::I32, [s.batch, s.seq]))?;
    let table = b.parameter("tok.weight", TensorType::new(s.dtype, [s.vocab, s.width]))?;
    let tok = b.embedding(table, tokens)?; // (B, S, E)
    let table = b.parameter("pos.weight", TensorType::new(s.dtype, [s.seq + 3, s.width]))?;
    let rows = b.arange(s.seq)?;
    let pos = b.embedding(table, rows)?; // (S, E)
    let mut x = b.add(tok, pos)?;
    for i in 0..s.blocks {
        x = b.scope(&format!("blocks.{i}"), |b| block(b, x, s))?;
    }
    x = layernorm(&mut b, "ln", x)?;
    let logits = linear(&mut b, "lm_head", x, s.vocab, true)?;
    b.output("logits", logits)?;
    b.finish()
}

fn block(b: &mut Builder, x: ValueId, s: Sizes) -> std::result::Result<ValueId, GraphError> {
    let normed = layernorm(b, "ln1", x)?;
    let attended = b.scope("sa", |b| {
        let mut heads = Vec::new();
        for h in 0..s.heads {
            heads.push(b.scope(&format!("heads.{h}"), |b| head(b, normed, s))?);
        }
        let joined = b.concat(&heads, 2)?;
        linear(b, "proj", joined, s.width, true)
    })?;
    let x = b.add(x, attended)?;
    let normed = layernorm(b, "ln2", x)?;
    let up = linear(b, "ffwd.net.0", normed, 4 * s.width, true)?;
    let up = b.relu(up)?;
    let down = linear(b, "ffwd.net.2", up, s.width, true)?;
    b.add(x, down)
}

fn head(b: &mut Builder, x: ValueId, s: Sizes) -> std::result::Result<ValueId, GraphError> {
    let size = s.width / s.heads;
    let k = linear(b, "key", x, size, false)?;
    let q = linear(b, "query", x, size, false)?;
    let v = linear(b, "value", x, size, false)?;
    let scores = b.matmul_transposed(q, false, k, true)?; // (B, S, S)
    let scores = b.scale(scores, (s.width as f32).powf(-0.5))?;
    let mask = b.causal_mask(s.seq, s.seq)?;
    let scores = b.masked_fill(scores, mask, f32::NEG_INFINITY)?;
    let weights = b.softmax(scores, 2)?;
    b.matmul(weights, v)
}

pub fn linear(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    outputs: usize,
    bias: bool,
) -> std::result::Result<ValueId, GraphError> {
    let (dtype, inputs) = (b.ty(x).dtype, b.shape(x).last());
    let weight = b.parameter(&format!("{name}.weight"), TensorType::new(dtype, [outputs, inputs]))?;
    let bias = match bias {
        true => Some(b.parameter(&format!("{name}.bias"), TensorType::new(dtype, [outputs]))?),
        false => None,
    };
    b.linear(x, weight, bias)
}

pub fn layernorm(b: &mut Builder, name: &str, x: ValueId) -> std::result::Result<ValueId, GraphError> {
    let row = TensorType::new(b.ty(x).dtype, [b.shape(x).last()]);
    let gamma = b.parameter(&format!("{name}.weight"), row.clone())?;
    let beta = b.parameter(&format!("{name}.bias"), row)?;
    b.scope(name, |b| b.layernorm(x, gamma, beta, 1e-5))
}

/// The seed's DNN: linear and ReLU, the last too.
pub fn dnn(batch: usize, widths: &[usize]) -> std::result::Result<Graph, GraphError> {
    let mut b = Builder::new();
    let mut x = b.input("x", f32(&[batch, widths[0]]))?;
    for (i, width) in widths[1..].iter().enumerate() {
        x = linear(&mut b, &format!("layers.{i}"), x, *width, true)?;
        x = b.relu(x)?;
    }
    b.output("y", x)?;
    b.finish()
}

/// How often each op occurs.
pub fn ops(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for (_, node) in graph.nodes().filter(|(_, n)| !n.op.is_source()) {
        *counts.entry(node.op.name()).or_insert(0) += 1;
    }
    counts
}

/// Numbers in −1..1 from a fixed sequence, so that a failure shows again.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as f64) / f64::from(1u32 << 30) - 1.0
    }

    pub fn tensor(&mut self, ty: &TensorType, below: usize) -> Tensor {
        let values: Vec<f64> = (0..ty.shape.elements())
            .map(|_| {
                let x = self.next();
                match ty.dtype {
                    d if d.is_float() => x,
                    DType::Bool => f64::from(x > 0.0),
                    _ => ((x + 1.0) / 2.0 * below as f64).floor().min((below - 1) as f64),
                }
            })
            .collect();
        Tensor::from_f64(ty.clone(), &values)
    }
}

type Named = BTreeMap<String, Tensor>;

/// Random parameters and inputs for a graph as written; integers lie below what they index.
pub fn values(graph: &Graph, seed: u64) -> (Named, Named) {
    let mut numbers = Numbers(seed);
    let params = graph
        .layout
        .iter()
        .map(|(_, s)| (s.name.clone(), numbers.tensor(&TensorType::new(s.dtype, s.shape.clone()), 1)));
    let params = params.collect();
    let bounds = graph.index_bounds();
    let inputs = graph.nodes().filter(|(_, n)| n.op == Op::Input).map(|(id, n)| {
        let below = bounds.iter().filter(|b| b.0 == id).map(|b| b.1.count).min().unwrap_or(5);
        (n.name.clone(), numbers.tensor(&n.outputs[0], below))
    });
    let inputs = inputs.collect();
    (params, inputs)
}

/// Fails unless two graphs give the same outputs and states on the reference, within `tolerance` of the largest number.
pub fn same_numbers(a: &Graph, b: &Graph, seed: u64, tolerance: f64) -> Result {
    let (params, inputs) = values(a, seed);
    let left = evaluate_all(a, &params, &inputs, &BTreeMap::new())?;
    let right = evaluate_all(b, &params, &inputs, &BTreeMap::new())?;
    for (left, right) in [(left.outputs, right.outputs), (left.states, right.states)] {
        assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
        for (name, left) in &left {
            close(name, left, &right[name], tolerance);
        }
    }
    Ok(())
}

fn close(name: &str, left: &Value, right: &Value, tolerance: f64) {
    assert_eq!(left.shape, right.shape, "{name}");
    let largest = left.data.iter().filter(|v| v.is_finite()).fold(1.0, |m: f64, v| m.max(v.abs()));
    for (i, (l, r)) in left.data.iter().zip(&right.data).enumerate() {
        let same = l == r || l.is_nan() && r.is_nan() || (l - r).abs() <= tolerance * largest;
        assert!(same, "{name}[{i}]: {l} as written, {r} rewritten");
    }
}

/// Each parameter under its own name, out of storages that may pack several.
pub fn own_parameters(graph: &Graph, storages: Named) -> Named {
    let mut own = Named::new();
    for (_, storage) in graph.layout.iter() {
        let whole = storages[&storage.name].to_f64();
        for part in &storage.parts {
            let values = &whole[part.offset..][..part.shape.elements()];
            own.insert(part.name.clone(), Tensor::from_f64(TensorType::new(storage.dtype, part.shape.clone()), values));
        }
    }
    own
}
