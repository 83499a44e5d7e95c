//! In: a graph; out: the same without ops that change nothing, with constants computed and moves composed. Knows
//! nothing of how many readers a value has.

use crate::graph::{
    Binary, DType, Graph, GraphError, Op, Report, Rewriter, Scalar, Shape, TensorType, Unary, ValueId, nearest_f16,
};
use half::f16;

/// What a node becomes.
enum Folded {
    /// A value that is there already.
    Value(ValueId),
    /// Another op.
    Op(Op, Vec<ValueId>),
}

/// Folds from the inputs on, so that one call sees what it has folded before. What could change a number is left: sums
/// of a softmax (NaN), `x + 0` (−0), constants and factors that f32 would round.
pub(super) fn fold(graph: &Graph, report: &mut Report) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    for (id, node) in graph.nodes() {
        let folded = match &node.outputs[..] {
            [ty] if !node.inputs.is_empty() => {
                let inputs = r.all(&node.inputs);
                moves(&r.new, &node.op, &inputs, &ty.shape).or_else(|| numbers(&r.new, &node.op, &inputs, ty))
            }
            _ => None,
        };
        let new = match folded {
            None => {
                r.copy(id)?;
                continue;
            }
            Some(Folded::Value(value)) => {
                report.add("fold", format!("{}: {} changes nothing", node.name, node.op.name()));
                value
            }
            Some(Folded::Op(op, inputs)) => {
                report.add("fold", format!("{}: {} → {}", node.name, node.op.name(), op.name()));
                r.new.push(op, inputs, &node.name)?.into()
            }
        };
        r.set(id.into(), new);
    }
    r.finish()
}

/// Ops that only move elements or change their type.
fn moves(g: &Graph, op: &Op, inputs: &[ValueId], shape: &Shape) -> Option<Folded> {
    let x = inputs[0];
    let before = g.producer(x);
    let same_shape = g.shape(x) == shape;
    let through = |op: Op| Some(Folded::Op(op, before.inputs.clone()));
    match (op, &before.op) {
        (Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. }, _) if same_shape => Some(Folded::Value(x)),
        (Op::Permute(perm), _) if perm.iter().copied().eq(0..perm.len()) => Some(Folded::Value(x)),
        (Op::Cast(dtype), _) if *dtype == g.ty(x).dtype => Some(Folded::Value(x)),
        (Op::Concat(_), _) if inputs.len() == 1 => Some(Folded::Value(x)),
        (Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Permute(_), Op::Constant(c, dtype, _)) => {
            Some(Folded::Op(Op::Constant(*c, *dtype, shape.clone()), vec![]))
        }
        (Op::Concat(_), Op::Constant(c, dtype, _)) => {
            let alike = |v: &ValueId| matches!(g.producer(*v).op, Op::Constant(other, _, _) if other == *c);
            inputs.iter().all(alike).then(|| Folded::Op(Op::Constant(*c, *dtype, shape.clone()), vec![]))
        }
        (Op::Reshape(shape), Op::Reshape(_)) => through(Op::Reshape(shape.clone())),
        (Op::Broadcast(shape), Op::Broadcast(_)) => through(Op::Broadcast(shape.clone())),
        (Op::Permute(outer), Op::Permute(inner)) => through(Op::Permute(outer.iter().map(|p| inner[*p]).collect())),
        (Op::Slice { axis, start, len }, Op::Slice { axis: a, start: from, .. }) if axis == a => {
            through(Op::Slice { axis: *axis, start: from + start, len: *len })
        }
        // what was f16 is f16 again
        (Op::Cast(DType::F16), Op::Cast(DType::F32)) if g.ty(before.inputs[0]).dtype == DType::F16 => {
            Some(Folded::Value(before.inputs[0]))
        }
        _ => None,
    }
}

/// Arithmetic on floats.
fn numbers(g: &Graph, op: &Op, inputs: &[ValueId], ty: &TensorType) -> Option<Folded> {
    let x = inputs[0];
    let constant = |number: f64| {
        let number = exact(number, ty.dtype)?;
        Some(Folded::Op(Op::Constant(number, ty.dtype, ty.shape.clone()), vec![]))
    };
    // whatever is made of NaN stays for the device
    let fill = |v: ValueId| g.fill(v).map(f64::from).filter(|x| !x.is_nan());
    match op {
        Op::Unary(Unary::Scale(c)) if c.get() == 1.0 => Some(Folded::Value(x)),
        Op::Unary(Unary::Scale(c)) if fill(x).is_none() => {
            let before = g.producer(x);
            let Op::Unary(Unary::Scale(inner)) = before.op else { return None };
            // as written an f16 is stored between the two
            let factor = product(c.get(), inner.get()).filter(|_| ty.dtype == DType::F32)?;
            Some(Folded::Op(Op::Unary(Unary::Scale(factor)), before.inputs.clone()))
        }
        Op::Unary(f) => constant(unary(*f, fill(x)?)?),
        Op::Binary(f) => {
            let one = |v: ValueId, of: ValueId| g.fill(v) == Some(1.0) && g.shape(of) == &ty.shape;
            match (f, fill(x), fill(inputs[1])) {
                (_, Some(a), Some(b)) => constant(binary(*f, a, b)?),
                (Binary::Mul | Binary::Div, _, _) if one(inputs[1], x) => Some(Folded::Value(x)),
                (Binary::Mul, _, _) if one(x, inputs[1]) => Some(Folded::Value(inputs[1])),
                _ => None,
            }
        }
        Op::Cast(DType::F32 | DType::F16) => constant(fill(x)?),
        _ => None,
    }
}

/// The number as a constant of the type, unless f32 rounds it; an f16 is rounded as its kernel and then its store would,
/// if that is the nearest.
fn exact(number: f64, dtype: DType) -> Option<Scalar> {
    let (stored, kept) = match dtype {
        DType::F16 => {
            let stored = f16::from_f32(number as f32);
            (stored.to_f32(), stored == nearest_f16(number))
        }
        _ => (number as f32, f64::from(number as f32) == number),
    };
    (kept && stored.is_finite()).then(|| stored.into())
}

/// One factor for two: a power of two rounds nothing, and if both grow or both shrink, what overflows between them
/// does so after them as well.
fn product(a: f32, b: f32) -> Option<Scalar> {
    let power_of_two = |c: f32| c.is_normal() && c.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
    let grows = |c: f32| c.abs() > 1.0;
    let fits = (power_of_two(a) || power_of_two(b)) && grows(a) == grows(b);
    // a device may take a subnormal factor for 0
    exact(f64::from(a) * f64::from(b), DType::F32).filter(|p| fits && p.get().is_normal())
}

/// The functions that every device computes alike.
fn unary(f: Unary, x: f64) -> Option<f64> {
    match f {
        Unary::Scale(c) => Some(x * f64::from(c.get())),
        Unary::Neg => Some(-x),
        Unary::Relu if x != 0.0 => Some(x.max(0.0)),
        Unary::Sqrt if x >= 0.0 => Some(x.sqrt()),
        _ => None,
    }
}

fn binary(f: Binary, a: f64, b: f64) -> Option<f64> {
    match f {
        Binary::Add => Some(a + b),
        Binary::Sub => Some(a - b),
        Binary::Mul => Some(a * b),
        Binary::Div => Some(a / b),
        Binary::Min if a != b => Some(a.min(b)),
        Binary::Max if a != b => Some(a.max(b)),
        _ => None,
    }
}
