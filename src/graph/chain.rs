//! In: element-wise steps that `fuse` collects; out: [`Chain`], a straight-line expression over one element of each
//! input. Three readers: `reference` evaluates it, `kernel` prints it as WGSL, `Display` prints it for people.

use super::{Binary, Comparison, Scalar, Unary};
use std::fmt;

/// Where a step takes an argument from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ref {
    /// The chain's input of this index.
    Input(usize),
    /// The result of an earlier step.
    Step(usize),
}

/// One operation of a chain. Float steps compute in f32 whatever the storage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A number.
    Const(Scalar),
    /// A function of one.
    Unary(Unary, Ref),
    /// A function of two.
    Binary(Binary, Ref, Ref),
    /// A condition, 1 or 0 when evaluated; only [`Step::Select`] reads it.
    Compare(Comparison, Ref, Ref),
    /// `cond ? a : b`; cond is a Bool input or a comparison.
    Select(Ref, Ref, Ref),
    /// Rounded to f16 and back: where the graph as written stores an f16 between two ops.
    RoundF16(Ref),
}

/// A straight-line element-wise expression. Its result is the last step's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Chain {
    /// How many inputs it reads.
    pub arity: usize,
    /// The steps, each reading inputs and earlier steps.
    pub steps: Vec<Step>,
}

impl Step {
    /// The arguments.
    pub fn args(&self) -> Vec<Ref> {
        match *self {
            Step::Const(_) => vec![],
            Step::Unary(_, a) | Step::RoundF16(a) => vec![a],
            Step::Binary(_, a, b) | Step::Compare(_, a, b) => vec![a, b],
            Step::Select(c, a, b) => vec![c, a, b],
        }
    }

    /// The same step on other arguments.
    pub fn map(&self, mut f: impl FnMut(Ref) -> Ref) -> Step {
        match *self {
            Step::Const(c) => Step::Const(c),
            Step::Unary(u, a) => Step::Unary(u, f(a)),
            Step::Binary(o, a, b) => {
                let a = f(a);
                Step::Binary(o, a, f(b))
            }
            Step::Compare(c, a, b) => {
                let a = f(a);
                Step::Compare(c, a, f(b))
            }
            Step::Select(c, a, b) => {
                let c = f(c);
                let a = f(a);
                Step::Select(c, a, f(b))
            }
            Step::RoundF16(a) => Step::RoundF16(f(a)),
        }
    }
}

impl Chain {
    /// A chain of one step.
    pub fn of(arity: usize, step: Step) -> Chain {
        Chain { arity, steps: vec![step] }
    }

    /// The chain that returns its only input.
    pub fn identity() -> Chain {
        Chain { arity: 1, steps: Vec::new() }
    }

    /// `input 0 + input 1`.
    pub fn add() -> Chain {
        Chain::of(2, Step::Binary(Binary::Add, Ref::Input(0), Ref::Input(1)))
    }

    /// What the chain returns.
    pub fn result(&self) -> Ref {
        match self.steps.len() {
            0 => Ref::Input(0),
            n => Ref::Step(n - 1),
        }
    }

    /// Whether an input is a condition.
    pub fn is_condition(&self, input: usize) -> bool {
        self.steps.iter().any(|s| matches!(s, Step::Select(c, ..) if *c == Ref::Input(input)))
    }

    /// Whether a step rounds to f16, for which a device must compute in it.
    pub fn rounds_f16(&self) -> bool {
        self.steps.iter().any(|s| matches!(s, Step::RoundF16(_)))
    }

    /// Evaluates the chain on one element of each input; a Bool input is 0 or 1.
    pub fn eval(
        &self,
        inputs: &[f64],
        round_f16: impl Fn(f64) -> f64,
        unary: impl Fn(Unary, f64) -> f64,
        binary: impl Fn(Binary, f64, f64) -> f64,
    ) -> f64 {
        let mut values = Vec::with_capacity(self.steps.len());
        let get = |values: &[f64], r: Ref| match r {
            Ref::Input(i) => inputs[i],
            Ref::Step(i) => values[i],
        };
        for step in &self.steps {
            let v = match *step {
                Step::Const(c) => f64::from(c.get()),
                Step::Unary(u, a) => unary(u, get(&values, a)),
                Step::Binary(o, a, b) => binary(o, get(&values, a), get(&values, b)),
                Step::Compare(c, a, b) => f64::from(c.holds(get(&values, a), get(&values, b))),
                Step::Select(c, a, b) => get(&values, if get(&values, c) != 0.0 { a } else { b }),
                Step::RoundF16(a) => round_f16(get(&values, a)),
            };
            values.push(v);
        }
        get(&values, self.result())
    }

    /// Puts `inner`'s result in the place of input `at`. `inputs[i]` is the new index of this chain's input i (the
    /// entry at `at` is not read), `inner_inputs[i]` that of `inner`'s input i; `arity` is the new count.
    pub fn inline(&self, at: usize, inner: &Chain, inputs: &[usize], inner_inputs: &[usize], arity: usize) -> Chain {
        let map_inner = |r: Ref| match r {
            Ref::Input(i) => Ref::Input(inner_inputs[i]),
            Ref::Step(i) => Ref::Step(i),
        };
        let base = inner.steps.len();
        let mut steps: Vec<Step> = inner.steps.iter().map(|s| s.map(map_inner)).collect();
        let result = map_inner(inner.result());
        steps.extend(self.steps.iter().map(|s| {
            s.map(|r| match r {
                Ref::Input(i) if i == at => result,
                Ref::Input(i) => Ref::Input(inputs[i]),
                Ref::Step(i) => Ref::Step(base + i),
            })
        }));
        Chain { arity, steps }
    }
}

/// `relu(i0 + i1)` printed as steps: `t0 = add(i0, i1); t1 = relu(t0)`.
impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |r: Ref| match r {
            Ref::Input(i) => format!("i{i}"),
            Ref::Step(i) => format!("t{i}"),
        };
        for (i, step) in self.steps.iter().enumerate() {
            let text = match *step {
                Step::Const(c) => format!("{c}"),
                Step::Unary(Unary::Scale(c), a) => format!("scale({}, {c})", name(a)),
                Step::Unary(u, a) => format!("{}({})", u.name(), name(a)),
                Step::Binary(o, a, b) => format!("{}({}, {})", o.name(), name(a), name(b)),
                Step::Compare(c, a, b) => format!("{}({}, {})", c.name(), name(a), name(b)),
                Step::Select(c, a, b) => format!("select({}, {}, {})", name(c), name(a), name(b)),
                Step::RoundF16(a) => format!("f16({})", name(a)),
            };
            write!(f, "{}t{i} = {text}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
