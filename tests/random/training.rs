//! In: moves and a random graph; out: ops of training in it, and the gradients of a loss of all its outputs.
#![allow(dead_code, reason = "not every test binary trains")]

use super::{Move, Random, Value};
use kiln::grad::{GradError, gradients};
use kiln::graph::{
    Activation, Binary, Comparison, CrossEntropyAttrs, DType, Disposition, Graph, GraphError, Op, Reduction,
    TensorType, Unary, ValueId,
};
use std::collections::BTreeSet;

/// What a plan of training has beside the moves of every plan.
pub(super) const MOVES: [fn(&mut Random, &Move) -> Value; 5] =
    [compared, dropout, cross_entropy, normal_cdf, linear_stack];

/// The larger where it is, written with a comparison of numbers, of integers, or with the largest magnitude of both.
fn compared(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let y = g.other(x, m.b)?;
    let comparison = [Comparison::Less, Comparison::LessEqual, Comparison::Equal][m.c % 3];
    let holds = match m.c % 4 {
        0 => {
            let [a, b] = [x, y].map(|v| g.b.cast(v, DType::I32));
            g.b.compare(comparison, a?, b?)?
        }
        1 => {
            let most = g.b.op(Op::Magnitude, &[x, y])?;
            let most = g.b.cast(most, g.b.ty(x).dtype)?;
            g.b.compare(comparison, x, most)?
        }
        _ => g.b.compare(comparison, x, y)?,
    };
    if m.a.is_multiple_of(5) {
        g.pool.push(holds);
    }
    g.b.select(holds, x, y)
}

fn dropout(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let counter = g.input(TensorType::new(DType::U32, [3]))?;
    g.b.dropout(x, [0.0, 0.1, 0.5][m.b % 3], m.c as u32, counter)
}

/// Each line's loss at its largest class, or at one of a few of them.
fn cross_entropy(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 1)?;
    let axis = m.b % g.b.shape(x).rank();
    let targets = g.b.argmax(x, axis)?;
    let ignore_index = m.c.is_multiple_of(3).then_some(0);
    let label_smoothing = [0.0, 0.1][m.c % 2].into();
    g.b.cross_entropy_rows(x, targets, CrossEntropyAttrs { axis, ignore_index, label_smoothing })
}

fn normal_cdf(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    g.b.unary(Unary::NormalCdf, x)
}

/// A stack over the first numbers of a value, as rows of eight or four.
fn linear_stack(g: &mut Random, m: &Move) -> Value {
    let x = g.float(m.a, 0)?;
    let width = [8, 4][m.b % 2];
    let elements = g.b.shape(x).elements();
    let flat = g.b.reshape(x, [elements])?;
    let rows = (elements / width).min(5);
    let x = match rows {
        0 => g.input(TensorType::new(g.b.ty(x).dtype, [1 + m.c % 3, width]))?,
        _ => {
            let first = g.b.slice(flat, 0, 0, rows * width)?;
            g.b.reshape(first, [rows, width])?
        }
    };
    let layers = 1 + m.c % 4;
    let w = g.parameter(x, &[layers, width, width])?;
    let b = if m.b.is_multiple_of(3) { None } else { Some(g.parameter(x, &[layers, width])?) };
    g.b.linear_stack(x, w, b, Activation::ALL[m.c % 4])
}

/// The graph with the gradients of the sum of its outputs' squares, by its inputs and parameters, as outputs. An
/// additive mask has no gradient.
pub fn with_gradients(graph: &Graph) -> Result<Graph, GradError> {
    let mut new = graph.clone();
    let mut loss: Option<ValueId> = None;
    for output in graph.outputs().iter().filter(|o| graph.ty(o.value).dtype.is_float()) {
        let value = push(&mut new, Op::Cast(DType::F32), &[output.value])?;
        let square = push(&mut new, Op::Binary(Binary::Mul), &[value, value])?;
        let axes = (0..new.shape(square).rank()).collect();
        let sum = push(&mut new, Op::Reduce { kind: Reduction::Sum, axes, keepdim: false }, &[square])?;
        loss = Some(match loss {
            None => sum,
            Some(loss) => push(&mut new, Op::Binary(Binary::Add), &[loss, sum])?,
        });
    }
    let Some(loss) = loss else { return Ok(new) };
    let masks: BTreeSet<ValueId> =
        graph.nodes().filter(|(_, n)| matches!(n.op, Op::Attention(a) if a.mask)).map(|(_, n)| n.inputs[3]).collect();
    let by: Vec<ValueId> = graph
        .nodes()
        .filter(|(_, n)| n.op.is_source() && n.outputs[0].dtype.is_float())
        .map(|(id, _)| id.into())
        .filter(|v| !masks.contains(v))
        .collect();
    let found = gradients(&mut new, loss, &by)?;
    for (x, dx) in by.iter().zip(found) {
        let name = format!("grad {x}");
        new.push_output(name, dx, Disposition::Read)?;
    }
    new.push_output("loss", loss, Disposition::Read)?;
    Ok(new)
}

fn push(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
    Ok(graph.push(op, inputs.to_vec(), "loss")?.into())
}
