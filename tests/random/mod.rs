//! In: moves drawn by proptest; out: a graph in which each move has added an op, with shapes small and odd, and every
//! value that nothing else reads given back. Knows the public API alone.

pub mod training;

use kiln::graph::{
    Binary, Builder, DType, Disposition, Graph, GraphError, Op, Reduction, Shape, TensorType, Unary, ValueId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

type Value = Result<ValueId, GraphError>;

/// One op and the choices that it needs.
#[derive(Clone, Debug)]
pub struct Move {
    kind: usize,
    a: usize,
    b: usize,
    c: usize,
}

/// A graph to be.
#[derive(Clone, Debug)]
pub struct Plan {
    pub dtype: DType,
    pub moves: Vec<Move>,
}

/// Plans of 4 to 24 moves in f32 or f16.
pub fn plans() -> impl Strategy<Value = Plan> {
    plans_of(MOVES.len())
}

/// Plans with the ops of training among them.
#[allow(dead_code, reason = "not every test binary trains")]
pub fn training_plans() -> impl Strategy<Value = Plan> {
    plans_of(MOVES.len() + training::MOVES.len())
}

fn plans_of(kinds: usize) -> impl Strategy<Value = Plan> {
    let choice = 0..1000usize;
    let moves = (0..kinds, choice.clone(), choice.clone(), choice).prop_map(|(kind, a, b, c)| Move { kind, a, b, c });
    let dtype = prop_oneof![Just(DType::F32), Just(DType::F16)];
    (dtype, prop::collection::vec(moves, 4..24)).prop_map(|(dtype, moves)| Plan { dtype, moves })
}

/// Builds what is planned.
pub fn graph(plan: &Plan) -> Result<Graph, GraphError> {
    let mut g = Random { b: Builder::new(), dtype: plan.dtype, pool: Vec::new(), fresh: 0 };
    for dims in [&[2, 3, 5][..], &[3, 7], &[5]] {
        let ty = TensorType::new(plan.dtype, dims);
        let x = g.input(ty)?;
        g.pool.push(x);
    }
    for m in &plan.moves {
        let make = MOVES.iter().chain(&training::MOVES).nth(m.kind).expect("a plan's kinds are moves");
        let value = make(&mut g, m)?;
        g.pool.push(value);
    }
    g.finish()
}

/// Every op of a graph by name; a reduction and an integer op are told apart.
pub fn count(graph: &Graph, counts: &mut BTreeMap<String, usize>) {
    for (_, node) in graph.nodes() {
        let integer = matches!(node.op, Op::Binary(_)) && node.outputs[0].dtype.is_integer();
        let name = format!("{}{}", node.op.name(), if integer { " of integers" } else { "" });
        *counts.entry(name).or_insert(0) += 1;
    }
}

/// What [`count`] finds once every op has occurred.
pub fn every_op() -> BTreeSet<String> {
    let unary = UNARY.iter().map(|f| f.name());
    let binary = BINARY.iter().map(|f| f.name());
    let others = [
        "input",
        "parameter",
        "constant",
        "arange",
        "matmul",
        "linear",
        "where",
        "masked_fill",
        "causal_mask",
        "softmax",
        "log_softmax",
        "layernorm",
        "rmsnorm",
        "embedding",
        "sum",
        "mean",
        "argmax",
        "reshape",
        "permute",
        "slice",
        "concat",
        "broadcast",
        "cast",
        "attention",
        "pick_row",
    ];
    let integers = BINARY.iter().map(|f| format!("{} of integers", f.name()));
    unary.chain(binary).chain(others).map(str::to_owned).chain(integers).collect()
}

const UNARY: [Unary; 11] = [
    Unary::Relu,
    Unary::GeluErf,
    Unary::GeluTanh,
    Unary::Silu,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Neg,
];

const BINARY: [Binary; 7] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Min, Binary::Max, Binary::Pow];

const MOVES: [fn(&mut Random, &Move) -> Value; 30] = [
    unary,
    unary,
    unary,
    binary,
    binary,
    binary,
    scale,
    number,
    residual,
    matmul,
    linear,
    linear,
    select,
    masked_fill,
    softmax,
    layernorm,
    rmsnorm,
    embedding,
    reduce,
    argmax,
    reshape,
    permute,
    slice,
    concat,
    broadcast,
    cast,
    attention,
    pick_row,
    integers,
    state,
];

struct Random {
    b: Builder,
    dtype: DType,
    pool: Vec<ValueId>,
    fresh: usize,
}

impl Random {
    fn name(&mut self) -> String {
        self.fresh += 1;
        format!("v{}", self.fresh)
    }

    fn input(&mut self, ty: TensorType) -> Value {
        let name = self.name();
        self.b.input(&name, ty)
    }

    fn parameter(&mut self, like: ValueId, dims: &[usize]) -> Value {
        let ty = TensorType::new(self.b.ty(like).dtype, dims);
        let name = self.name();
        self.b.parameter(&name, ty)
    }

    /// One of the last values that fit, so that chains grow long.
    fn recent(&self, choice: usize, fits: impl Fn(&TensorType) -> bool) -> Option<ValueId> {
        let fitting: Vec<ValueId> = self.pool.iter().rev().copied().filter(|v| fits(self.b.ty(*v))).take(4).collect();
        // the last one half of the time
        fitting.get((choice % 8).saturating_sub(4).min(fitting.len().saturating_sub(1))).copied()
    }

    fn float(&mut self, choice: usize, rank: usize) -> Value {
        match self.recent(choice, |t| t.dtype.is_float() && t.shape.rank() >= rank) {
            Some(value) => Ok(value),
            None => self.input(TensorType::new(self.dtype, [2, 3, 5])),
        }
    }

    /// A float that broadcasts with x.
    fn other(&mut self, x: ValueId, choice: usize) -> Value {
        let ty = self.b.ty(x).clone();
        let fits = |t: &TensorType| {
            let shape = t.shape.broadcast(&ty.shape);
            t.dtype == ty.dtype && shape.is_ok_and(|s| s.elements() <= 1000)
        };
        match self.recent(choice, fits) {
            Some(other) if other != x || choice.is_multiple_of(5) => Ok(other),
            _ if choice.is_multiple_of(3) => self.b.constant(0.5, TensorType::new(ty.dtype, Shape::default())),
            _ if choice.is_multiple_of(2) => self.parameter(x, &[ty.shape.last()]),
            _ => self.input(ty),
        }
    }

    fn mask(&mut self, x: ValueId, choice: usize) -> Value {
        let dims = self.b.shape(x).dims().to_vec();
        match dims[..] {
            [.., q, k] if !choice.is_multiple_of(3) => self.b.causal_mask(q, k),
            _ if choice.is_multiple_of(2) => self.b.cast(x, DType::Bool),
            _ => self.input(TensorType::new(DType::Bool, dims)),
        }
    }

    fn finish(self) -> Result<Graph, GraphError> {
        let mut graph = self.b.finish()?;
        let uses = graph.use_counts();
        for (i, v) in self.pool.iter().enumerate() {
            if uses[v.node.0][v.output] == 0 || i % 11 == 7 {
                graph.push_output(format!("out{i}"), *v, Disposition::Read)?;
            }
        }
        Ok(graph)
    }
}

fn unary(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    g.b.unary(UNARY[m.b % UNARY.len()], x)
}

fn binary(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let y = g.other(x, m.c)?;
    let f = BINARY[m.b % BINARY.len()];
    if m.a.is_multiple_of(2) { g.b.binary(f, x, y) } else { g.b.binary(f, y, x) }
}

fn scale(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    g.b.scale(x, [1.0, 0.5, -2.0, 0.3, 8.0][m.b % 5])
}

/// A constant, as written in full or stretched.
fn number(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let ty = g.b.ty(x).clone();
    let number = [1.0, 2.0, -0.25, 0.1][m.b % 4];
    match m.c % 3 {
        0 => g.b.constant(number, ty),
        1 => g.b.constant(number, TensorType::new(ty.dtype, Shape::default())),
        _ => {
            let one = g.b.constant(number, TensorType::new(ty.dtype, Shape::default()))?;
            g.b.broadcast(one, ty.shape)
        }
    }
}

/// A sum, normed.
fn residual(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let y = g.other(x, m.b)?;
    let sum = g.b.add(x, y)?;
    if m.c.is_multiple_of(2) {
        g.pool.push(sum);
    }
    norm(g, sum, true)
}

fn norm(g: &mut Random, x: ValueId, centred: bool) -> Value {
    let width = [g.b.shape(x).last()];
    let gamma = g.parameter(x, &width)?;
    if !centred {
        return g.b.rmsnorm(x, gamma, 1e-3);
    }
    let beta = g.parameter(x, &width)?;
    g.b.layernorm(x, gamma, beta, 1e-3)
}

fn matmul(g: &mut Random, m: &Move) -> Value {
    let a = g.float(m.a, 2)?;
    let (ta, tb) = (m.b.is_multiple_of(2), m.c.is_multiple_of(2));
    let dims = g.b.shape(a).dims().to_vec();
    let inner = dims[dims.len() - if ta { 2 } else { 1 }];
    let columns = 1 + m.c % 5;
    let mut right = if tb { vec![columns, inner] } else { vec![inner, columns] };
    if m.b.is_multiple_of(3) && dims.len() == 3 {
        right.insert(0, dims[0]);
    }
    let right = g.parameter(a, &right)?;
    g.b.matmul_transposed(a, ta, right, tb)
}

fn linear(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let (inputs, outputs) = (g.b.shape(x).last(), [1, 3, 5, 7][m.b % 4]);
    let weight = g.parameter(x, &[outputs, inputs])?;
    let bias = match m.c % 2 {
        0 => Some(g.parameter(x, &[outputs])?),
        _ => None,
    };
    let y = g.b.linear(x, weight, bias)?;
    if !m.c.is_multiple_of(3) || inputs != outputs {
        return Ok(y);
    }
    let y = g.b.relu(y)?;
    g.b.add(x, y)
}

fn select(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let y = g.other(x, m.b)?;
    let mask = g.mask(x, m.c)?;
    g.b.select(mask, x, y)
}

fn masked_fill(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let mask = g.mask(x, m.b)?;
    g.b.masked_fill(x, mask, [f32::NEG_INFINITY, 0.0, 0.1][m.c % 3])
}

fn softmax(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let axis = m.b % g.b.shape(x).rank();
    if m.c.is_multiple_of(2) { g.b.softmax(x, axis) } else { g.b.log_softmax(x, axis) }
}

fn layernorm(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    norm(g, x, true)
}

fn rmsnorm(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    norm(g, x, false)
}

fn embedding(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let table = g.parameter(x, &[5, 3])?;
    let indices = match m.b % 3 {
        0 => g.b.arange(1 + m.c % 5)?,
        _ => g.input(TensorType::new(DType::I32, [2, 1 + m.c % 4]))?,
    };
    g.b.embedding(table, indices)
}

fn reduce(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let kind = [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::AbsMax][m.b % 4];
    let rank = g.b.shape(x).rank();
    let axes = if m.c.is_multiple_of(5) { (0..rank).collect() } else { vec![m.c % rank] };
    g.b.reduce(kind, x, &axes, m.c.is_multiple_of(2))
}

fn argmax(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let axis = m.b % g.b.shape(x).rank();
    g.b.argmax(x, axis)
}

fn reshape(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let shape = g.b.shape(x).clone();
    let dims = match m.b % 3 {
        0 => vec![shape.elements()],
        1 => vec![shape.last(), shape.elements() / shape.last()],
        _ => [shape.dims(), &[1]].concat(),
    };
    g.b.reshape(x, dims)
}

fn permute(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let rank = g.b.shape(x).rank();
    let perm: Vec<usize> = (0..rank).map(|i| (i + m.b) % rank).collect();
    g.b.permute(x, &perm)
}

fn slice(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let axis = m.b % g.b.shape(x).rank();
    let size = g.b.shape(x).dims()[axis];
    let start = m.c % size;
    g.b.slice(x, axis, start, size - start - (m.a % 2).min(size - start - 1))
}

fn concat(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let axis = m.b % g.b.shape(x).rank();
    let size = g.b.shape(x).dims()[axis];
    match m.c % 3 {
        0 => g.b.concat(&[x], axis),
        1 => {
            let (left, right) = (g.b.slice(x, axis, 0, size / 2)?, g.b.slice(x, axis, size / 2, size - size / 2)?);
            g.b.concat(&[left, right], axis)
        }
        _ => g.b.concat(&[x, x], axis),
    }
}

fn broadcast(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let shape = g.b.shape(x).clone();
    let lead = if shape.elements() <= 300 && shape.rank() < 4 { &[1, 2, 3][m.b % 3..][..1] } else { &[] };
    g.b.broadcast(x, [lead, shape.dims()].concat())
}

fn cast(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let dtypes = [DType::F32, DType::F16, DType::F32, DType::F16, DType::I32, DType::U32, DType::Bool];
    g.b.cast(x, dtypes[m.b % dtypes.len()])
}

fn attention(g: &mut Random, m: &Move) -> Value {
    let (heads, size) = (1 + m.a % 3, 1 + m.b % 3);
    let (queries, keys) = ([1, 3, 5][m.c % 3], [3, 5][m.b % 2]);
    let ty = |rows| TensorType::new(g.dtype, [2, rows, heads * size]);
    let (q, k) = (ty(queries), ty(keys));
    let (q, k, v) = (g.input(q)?, g.input(k.clone())?, g.input(k)?);
    let mask = match m.a.is_multiple_of(2) {
        true => Some(g.parameter(q, &[heads, queries, keys])?),
        false => None,
    };
    let lengths = match m.b.is_multiple_of(2) {
        true => Some(g.input(TensorType::new(DType::I32, [2]))?),
        false => None,
    };
    g.b.attention(q, k, v, heads, 0.5, m.c.is_multiple_of(2), mask, lengths)
}

fn pick_row(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 2)?;
    let batch = g.b.shape(x).dims()[0];
    let position = g.input(TensorType::new(DType::I32, [batch]))?;
    g.b.pick_row(x, position)
}

fn integers(g: &mut Random, m: &Move) -> Value {
    let x = match g.recent(m.a, |t| t.dtype == DType::I32) {
        Some(x) if !m.c.is_multiple_of(3) => x,
        _ => g.input(TensorType::new(DType::I32, [3]))?,
    };
    let y = if m.c.is_multiple_of(2) { x } else { g.input(g.b.ty(x).clone())? };
    g.b.binary(BINARY[m.b % BINARY.len()], x, y)
}

/// A sum over runs.
fn state(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let (name, ty) = (g.name(), g.b.ty(x).clone());
    let state = g.b.state(&name, ty)?;
    let next = g.b.add(state, x)?;
    g.b.update(state, next)?;
    Ok(if m.b.is_multiple_of(2) { state } else { next })
}
