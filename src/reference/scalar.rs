//! In: one element of each operand; out: one element. Every element-wise op and chain is made of these; knows no
//! shapes.

use crate::graph::{Binary, DType, Unary, nearest_f16};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

/// The nearest f16.
pub(super) fn round_f16(x: f64) -> f64 {
    nearest_f16(x).to_f64()
}

/// A function of one float.
pub(super) fn unary(f: Unary, x: f64) -> f64 {
    match f {
        Unary::Scale(c) => x * f64::from(c.get()),
        Unary::Relu => maximum(x, 0.0),
        // 1 + erf(t) as erfc(−t), and 1 + tanh(u) as 2·sigmoid(2u), keep their digits where they are small
        Unary::GeluErf => 0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2),
        Unary::GeluTanh => x * sigmoid(2.0 * FRAC_2_PI.sqrt() * (x + 0.044715 * x * x * x)),
        Unary::Silu => x * sigmoid(x),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => x.sqrt().recip(),
        Unary::Neg => -x,
        Unary::NormalCdf => 0.5 * libm::erfc(-x * FRAC_1_SQRT_2),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The larger, NaN if either is NaN.
pub(super) fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// The smaller, NaN if either is NaN.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// A function of two floats.
pub(super) fn binary(f: Binary, a: f64, b: f64) -> f64 {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Min => minimum(a, b),
        Binary::Max => maximum(a, b),
        Binary::Pow => a.powf(b),
    }
}

/// A function of two I32 or U32, wrapping at 32 bits. Division truncates; by zero it gives the dividend, as WGSL
/// says. A negative power is truncated too.
pub(super) fn integer(f: Binary, dtype: DType, a: f64, b: f64) -> f64 {
    let (a, b) = (a as i64, b as i64);
    let exact = match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div if b == 0 => a,
        Binary::Div => a / b,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Pow if b >= 0 => a.wrapping_pow(b as u32),
        Binary::Pow => match a {
            1 => 1,
            -1 if b % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        },
    };
    // the low 32 bits of a 64-bit result are those of the 32-bit one
    if dtype == DType::U32 { f64::from(exact as u32) } else { f64::from(exact as i32) }
}

/// An element converted to another type: a float to an integer truncates and saturates, an integer to the other
/// keeps its bits, anything but zero is true.
pub(super) fn convert(from: DType, to: DType, x: f64) -> f64 {
    match to {
        DType::F32 | DType::F16 | DType::BF16 => x,
        DType::I32 if from.is_integer() => f64::from(x as i64 as i32),
        DType::I32 => f64::from(x as i32),
        DType::U32 if from.is_integer() => f64::from(x as i64 as u32),
        DType::U32 => f64::from(x as u32),
        DType::Bool => f64::from(x != 0.0),
    }
}
