//! In: a [`Chain`]; out: its steps as WGSL expressions over `i0, i1, …` and `t0, t1, …`. Knows no kernel.

use super::wgsl_type;
use crate::graph::{Binary, Chain, Comparison, DType, Ref, Scalar, Step, Unary};

/// A float that has a WGSL literal prints as one; infinities, NaN and subnormals are made of bits that the compiler
/// does not know, since WGSL rejects such constants. `zero` is an expression for a u32 that is 0 at run time.
pub fn float_literal(value: Scalar, zero: &str) -> String {
    let v = value.get();
    if v.abs() == f32::MAX {
        // the digits that tell f32s apart are of a larger number here, which strict compilers refuse
        format!("f32({:?})", f64::from(v))
    } else if v == 0.0 || v.is_normal() {
        format!("f32({v:?})")
    } else {
        format!("bitcast<f32>({:#010x}u | {zero})", v.to_bits())
    }
}

/// How steps are printed.
pub struct Printer<'a> {
    /// F32, or an integer type.
    pub compute: DType,
    /// 1, or 4 for vec4 values.
    pub width: usize,
    /// An expression for a u32 that is 0 at run time.
    pub zero: &'a str,
}

impl Printer<'_> {
    /// The type of values: `f32`, `vec4<i32>`.
    pub fn ty(&self) -> String {
        vector(wgsl_type(self.compute), self.width)
    }

    fn constant(&self, value: Scalar) -> String {
        let one = match self.compute {
            DType::I32 => format!("i32({})", value.get() as i32),
            DType::U32 | DType::Bool => format!("u32({}u)", value.get() as u32),
            _ => float_literal(value, self.zero),
        };
        if self.width == 4 { format!("{}({one})", self.ty()) } else { one }
    }

    /// Every step as an expression, in order.
    pub fn steps(&self, chain: &Chain) -> Vec<String> {
        chain.steps.iter().map(|s| self.step(s)).collect()
    }

    fn step(&self, step: &Step) -> String {
        match *step {
            Step::Const(c) => self.constant(c),
            Step::Unary(u, a) => self.unary(u, &name(a)),
            Step::Binary(o, a, b) => self.binary(o, &name(a), &name(b)),
            Step::Compare(c, a, b) => format!("{} {} {}", name(a), comparison(c), name(b)),
            Step::Select(c, a, b) => format!("select({}, {}, {})", name(b), name(a), name(c)),
            // quantizeToF16 may flush subnormals to zero; a conversion there and back may not
            Step::RoundF16(a) => format!("{}({}({}))", self.ty(), vector("f16", self.width), name(a)),
        }
    }

    fn unary(&self, u: Unary, a: &str) -> String {
        match u {
            Unary::Scale(c) => format!("{a} * {}", self.constant(c)),
            Unary::Relu => format!("k_relu({a})"),
            Unary::GeluErf => format!("k_gelu_erf({a})"),
            Unary::GeluTanh => format!("k_gelu_tanh({a})"),
            Unary::Silu => format!("k_silu({a})"),
            Unary::Tanh => format!("k_tanh({a})"),
            Unary::Sigmoid => format!("k_sigmoid({a})"),
            Unary::Exp => format!("exp({a})"),
            Unary::Log => format!("log({a})"),
            Unary::Sqrt => format!("sqrt({a})"),
            Unary::Rsqrt => format!("inverseSqrt({a})"),
            Unary::Neg => format!("-{a}"),
            Unary::NormalCdf => format!("k_normal_cdf({a})"),
        }
    }

    fn binary(&self, o: Binary, a: &str, b: &str) -> String {
        let float = self.compute == DType::F32;
        match o {
            Binary::Add => format!("{a} + {b}"),
            Binary::Sub => format!("{a} - {b}"),
            Binary::Mul => format!("{a} * {b}"),
            Binary::Div if float => format!("{a} / {b}"),
            Binary::Div => format!("k_div({a}, {b})"),
            Binary::Min if float => format!("k_min({a}, {b})"),
            Binary::Max if float => format!("k_max({a}, {b})"),
            Binary::Min => format!("min({a}, {b})"),
            Binary::Max => format!("max({a}, {b})"),
            Binary::Pow => format!("k_pow({a}, {b})"),
        }
    }
}

/// The operator; ordered, so that it is false of NaN.
fn comparison(c: Comparison) -> &'static str {
    match c {
        Comparison::Less => "<",
        Comparison::LessEqual => "<=",
        Comparison::Equal => "==",
    }
}

/// `f32` or `vec4<f32>`.
pub fn vector(scalar: &str, width: usize) -> String {
    if width == 4 { format!("vec4<{scalar}>") } else { scalar.to_owned() }
}

/// The name of a chain's input or step in WGSL.
pub fn name(r: Ref) -> String {
    match r {
        Ref::Input(i) => format!("i{i}"),
        Ref::Step(i) => format!("t{i}"),
    }
}
