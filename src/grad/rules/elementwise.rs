//! In: an element-wise op and dy; out: the gradients of its operands, of plain element-wise ops that fuse into chains.
//! Knows no axes; what a broadcast stretched is summed again.
//!
//! Ties, NaN and what a function's edge gives are PyTorch's, as its derivatives.yaml has them. No formula multiplies 0
//! by infinity for an x that is finite.

use super::Done;
use crate::grad::walk::Local;
use crate::grad::writer::Value;
use crate::graph::{Binary, Comparison, DropoutAttrs, Op, Unary, ValueId};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, FRAC_2_SQRT_PI};

/// Beyond ±this, gelu_tanh is 0 or x in f32 and its slope 0 or 1.
const GELU_TANH_FLAT: f32 = 10.0;

/// The names of the gradients of two operands.
const OPERANDS: [&str; 2] = ["da", "db"];

pub(super) fn unary(c: &mut Local, f: Unary) -> Done {
    c.begin("dx");
    let dy = c.dy()?;
    let dx = match f {
        Unary::Scale(_) | Unary::Neg => c.w.unary(f, dy)?,
        // y ≤ 0 where x ≤ 0; a NaN lets dy pass
        Unary::Relu => {
            let (y, zero) = (c.output(0)?, c.scalar(0.0)?);
            let flat = c.w.compare(Comparison::LessEqual, y, zero)?;
            c.w.zero_where(flat, dy)?
        }
        Unary::Log => {
            let x = c.input(0)?;
            c.w.div(dy, x)?
        }
        Unary::Sqrt => {
            let y = c.output(0)?;
            let twice = c.w.scale(y, 2.0)?;
            c.w.div(dy, twice)?
        }
        Unary::GeluErf
        | Unary::GeluTanh
        | Unary::Silu
        | Unary::Tanh
        | Unary::Sigmoid
        | Unary::Exp
        | Unary::Rsqrt
        | Unary::NormalCdf => {
            let slope = slope(c, f)?;
            c.w.mul(dy, slope)?
        }
    };
    c.give(0, dx);
    Ok(())
}

/// dy/dx, from whichever of x and y it is cheaper to keep.
fn slope(c: &mut Local, f: Unary) -> Value {
    let one = c.scalar(1.0)?;
    match f {
        // 1 − y²
        Unary::Tanh => {
            let y = c.output(0)?;
            let square = c.w.mul(y, y)?;
            c.w.sub(one, square)
        }
        // y (1 − y)
        Unary::Sigmoid => {
            let y = c.output(0)?;
            let rest = c.w.sub(one, y)?;
            c.w.mul(y, rest)
        }
        Unary::Exp => c.output(0),
        // −y³ / 2
        Unary::Rsqrt => {
            let y = c.output(0)?;
            let square = c.w.mul(y, y)?;
            let cube = c.w.mul(square, y)?;
            c.w.scale(cube, -0.5)
        }
        // s (1 + x (1 − s)) with s = sigmoid(x)
        Unary::Silu => {
            let x = c.input(0)?;
            let s = c.w.unary(Unary::Sigmoid, x)?;
            let rest = c.w.sub(one, s)?;
            let bend = c.w.mul(x, rest)?;
            let bend = c.w.add(bend, one)?;
            c.w.mul(s, bend)
        }
        // Φ(x) + x φ(x)
        Unary::GeluErf => {
            let x = c.input(0)?;
            let cdf = c.w.unary(Unary::NormalCdf, x)?;
            let density = density(c, x)?;
            let bend = c.w.mul(x, density)?;
            c.w.add(cdf, bend)
        }
        Unary::NormalCdf => {
            let x = c.input(0)?;
            density(c, x)
        }
        Unary::GeluTanh => gelu_tanh_slope(c),
        // those that divide or pass dy on have no slope of their own
        Unary::Scale(_) | Unary::Neg | Unary::Relu | Unary::Log | Unary::Sqrt => Ok(one),
    }
}

/// φ(x) = exp(−x² / 2) / sqrt(2π).
fn density(c: &mut Local, x: ValueId) -> Value {
    let half = c.w.scale(x, -0.5)?;
    let exponent = c.w.mul(half, x)?;
    let bell = c.w.unary(Unary::Exp, exponent)?;
    c.w.scale(bell, (0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI) as f32)
}

/// With x bounded to where the slope still bends and u = sqrt(2/π) (x + 0.044715 x³), gelu is x s with s = sigmoid(2u):
/// the slope is s + x s (1 − s) · 2u'.
fn gelu_tanh_slope(c: &mut Local) -> Value {
    let x = c.input(0)?;
    let (least, most) = (c.scalar(-GELU_TANH_FLAT)?, c.scalar(GELU_TANH_FLAT)?);
    let (one, twice) = (c.scalar(1.0)?, 2.0 * FRAC_2_PI.sqrt());
    let x = c.w.binary(Binary::Max, x, least)?;
    let x = c.w.binary(Binary::Min, x, most)?;
    let square = c.w.mul(x, x)?;
    // 2u = x (2 sqrt(2/π) + 2 sqrt(2/π) · 0.044715 x²), 2u' the same with three times the second factor
    let linear = c.scalar(twice as f32)?;
    let inner = c.w.scale(square, (twice * 0.044715) as f32)?;
    let inner = c.w.add(inner, linear)?;
    let inner = c.w.mul(x, inner)?;
    let s = c.w.unary(Unary::Sigmoid, inner)?;
    let steep = c.w.scale(square, (3.0 * twice * 0.044715) as f32)?;
    let steep = c.w.add(steep, linear)?;
    let rest = c.w.sub(one, s)?;
    let bend = c.w.mul(x, s)?;
    let bend = c.w.mul(bend, rest)?;
    let bend = c.w.mul(bend, steep)?;
    c.w.add(s, bend)
}

pub(super) fn binary(c: &mut Local, f: Binary) -> Done {
    let dy = c.dy()?;
    match f {
        Binary::Add | Binary::Sub => {
            for (input, name) in OPERANDS.into_iter().enumerate() {
                if c.wants(input) {
                    c.begin(name);
                    let flipped = f == Binary::Sub && input == 1;
                    let gradient = if flipped { c.w.unary(Unary::Neg, dy)? } else { dy };
                    c.give_summed(input, gradient)?;
                }
            }
            Ok(())
        }
        Binary::Mul => {
            for (input, name) in OPERANDS.into_iter().enumerate() {
                if c.wants(input) {
                    c.begin(name);
                    let other = c.input(1 - input)?;
                    let gradient = c.w.mul(dy, other)?;
                    c.give_summed(input, gradient)?;
                }
            }
            Ok(())
        }
        Binary::Div => div(c, dy),
        Binary::Min | Binary::Max => extreme(c, f, dy),
        Binary::Pow => pow(c, dy),
    }
}

/// da = dy / b, db = −dy (a / b) / b.
fn div(c: &mut Local, dy: ValueId) -> Done {
    if c.wants(0) {
        c.begin("da");
        let b = c.input(1)?;
        let da = c.w.div(dy, b)?;
        c.give_summed(0, da)?;
    }
    if c.wants(1) {
        c.begin("db");
        let (a, b) = (c.input(0)?, c.input(1)?);
        let ratio = c.w.div(a, b)?;
        let ratio = c.w.div(ratio, b)?;
        let db = c.w.mul(dy, ratio)?;
        let db = c.w.unary(Unary::Neg, db)?;
        c.give_summed(1, db)?;
    }
    Ok(())
}

/// The operand that was taken gets dy, both half of it where they are equal; with a NaN both get all.
fn extreme(c: &mut Local, f: Binary, dy: ValueId) -> Done {
    for (input, name) in OPERANDS.into_iter().enumerate() {
        if !c.wants(input) {
            continue;
        }
        c.begin(name);
        let (own, other) = (c.input(input)?, c.input(1 - input)?);
        let (less, more) = if f == Binary::Max { (own, other) } else { (other, own) };
        let beaten = c.w.compare(Comparison::Less, less, more)?;
        let tie = c.w.compare(Comparison::Equal, own, other)?;
        let half = c.w.scale(dy, 0.5)?;
        let shared = c.w.push(Op::Where, &[tie, half, dy])?;
        let gradient = c.w.zero_where(beaten, shared)?;
        c.give_summed(input, gradient)?;
    }
    Ok(())
}

/// da = dy b a^(b − 1), 0 where b is 0; db = dy y ln a, 0 where a is 0 and b ≥ 0.
fn pow(c: &mut Local, dy: ValueId) -> Done {
    let zero = c.scalar(0.0)?;
    if c.wants(0) {
        c.begin("da");
        let (a, b, one) = (c.input(0)?, c.input(1)?, c.scalar(1.0)?);
        let exponent = c.w.sub(b, one)?;
        let power = c.w.binary(Binary::Pow, a, exponent)?;
        let slope = c.w.mul(b, power)?;
        let da = c.w.mul(dy, slope)?;
        let flat = c.w.compare(Comparison::Equal, b, zero)?;
        let da = c.w.zero_where(flat, da)?;
        c.give_summed(0, da)?;
    }
    if c.wants(1) {
        c.begin("db");
        let (a, b, y) = (c.input(0)?, c.input(1)?, c.output(0)?);
        let log = c.w.unary(Unary::Log, a)?;
        let slope = c.w.mul(y, log)?;
        let db = c.w.mul(dy, slope)?;
        let grows = c.w.compare(Comparison::LessEqual, zero, b)?;
        let edge = c.w.zero_where(grows, db)?;
        let at_zero = c.w.compare(Comparison::Equal, a, zero)?;
        let db = c.w.push(Op::Where, &[at_zero, edge, db])?;
        c.give_summed(1, db)?;
    }
    Ok(())
}

/// Each side gets dy where it was picked.
pub(super) fn select(c: &mut Local) -> Done {
    let dy = c.dy()?;
    if c.wants(1) {
        c.begin("da");
        let cond = c.input(0)?;
        let da = c.w.only_where(cond, dy)?;
        c.give_summed(1, da)?;
    }
    if c.wants(2) {
        c.begin("db");
        let cond = c.input(0)?;
        let db = c.w.zero_where(cond, dy)?;
        c.give_summed(2, db)?;
    }
    Ok(())
}

pub(super) fn masked_fill(c: &mut Local) -> Done {
    c.begin("dx");
    let (dy, mask) = (c.dy()?, c.input(1)?);
    let dx = c.w.zero_where(mask, dy)?;
    c.give(0, dx);
    Ok(())
}

/// Back to the type that was converted.
pub(super) fn cast(c: &mut Local) -> Done {
    c.begin("dx");
    let (dy, dtype) = (c.dy()?, c.ty(0).dtype);
    let dx = if c.w.graph.ty(dy).dtype == dtype { dy } else { c.w.push(Op::Cast(dtype), &[dy])? };
    c.give(0, dx);
    Ok(())
}

/// The same elements of dy are dropped and scaled, by the same counter.
pub(super) fn dropout(c: &mut Local, attrs: DropoutAttrs) -> Done {
    c.begin("dx");
    let (dy, counter) = (c.dy()?, c.input(1)?);
    let dx = c.w.push(Op::Dropout(attrs), &[dy, counter])?;
    c.give(0, dx);
    Ok(())
}
