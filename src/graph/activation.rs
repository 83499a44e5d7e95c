//! In: nothing; out: [`Activation`], what may stand between the layers of a stack. Knows chains.

use super::{Binary, Chain, Comparison, Ref, Step, Unary};
use std::fmt;

/// An element-wise function whose slope follows from its value, so that a backward pass need not keep its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x.
    Identity,
    /// [`Unary::Relu`].
    Relu,
    /// [`Unary::Tanh`].
    Tanh,
    /// [`Unary::Sigmoid`].
    Sigmoid,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 4] = [Activation::Identity, Activation::Relu, Activation::Tanh, Activation::Sigmoid];

    /// The activation that is this function.
    pub fn of(f: Unary) -> Option<Activation> {
        Activation::ALL.into_iter().find(|a| a.function() == Some(f))
    }

    /// The function, `None` where it is its argument.
    pub fn function(self) -> Option<Unary> {
        match self {
            Activation::Identity => None,
            Activation::Relu => Some(Unary::Relu),
            Activation::Tanh => Some(Unary::Tanh),
            Activation::Sigmoid => Some(Unary::Sigmoid),
        }
    }

    /// The function's name in prints.
    pub fn name(self) -> &'static str {
        self.function().map_or("identity", Unary::name)
    }

    /// What a layer does with its product, input 0: adds its bias, input 1, if it has one, and applies the function.
    pub fn forward(self, bias: bool) -> Chain {
        let mut chain = if bias { Chain::add() } else { Chain { arity: 2, ..Chain::identity() } };
        let sum = chain.result();
        chain.steps.extend(self.function().map(|f| Step::Unary(f, sum)));
        chain
    }

    /// The gradient of its argument from that of its value, input 0, and the value, input 1. As gradients of the functions
    /// alone: a value of ReLU that is NaN lets the gradient pass.
    pub fn backward(self) -> Chain {
        let (dy, y) = (Ref::Input(0), Ref::Input(1));
        let (first, second, third) = (Ref::Step(0), Ref::Step(1), Ref::Step(2));
        let steps = match self {
            Activation::Identity => Vec::new(),
            Activation::Relu => vec![
                Step::Const(0.0.into()),
                Step::Compare(Comparison::LessEqual, y, first),
                Step::Select(second, first, dy),
            ],
            // dy (1 − y²)
            Activation::Tanh => vec![
                Step::Const(1.0.into()),
                Step::Binary(Binary::Mul, y, y),
                Step::Binary(Binary::Sub, first, second),
                Step::Binary(Binary::Mul, dy, third),
            ],
            // dy y (1 − y)
            Activation::Sigmoid => vec![
                Step::Const(1.0.into()),
                Step::Binary(Binary::Sub, first, y),
                Step::Binary(Binary::Mul, y, second),
                Step::Binary(Binary::Mul, dy, third),
            ],
        };
        Chain { arity: 2, steps }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
