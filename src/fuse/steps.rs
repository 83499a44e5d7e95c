//! In: element-wise nodes one after the other; out: a [`Chain`] and the values that it reads. Knows nothing of which
//! nodes belong together.

use crate::graph::{Binary, Chain, DType, Graph, Node, NodeId, Op, Ref, Step, Unary, ValueId};
use half::f16;
use std::collections::BTreeMap;

/// Whether a node is an element-wise op with a float result that a chain can hold, casts apart.
pub(super) fn is_elementwise(node: &Node) -> bool {
    let float = |output: usize| matches!(node.outputs.get(output), Some(ty) if ty.dtype.is_float());
    matches!(node.op, Op::Unary(_) | Op::Binary(_) | Op::Where | Op::MaskedFill(_)) && float(0)
}

/// Whether a node compares floats, which a chain can hold as the condition of a where or a masked fill; nothing else
/// that a chain holds reads it.
pub(super) fn is_condition(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Compare(_)) && graph.ty(node.inputs[0]).dtype.is_float()
}

/// Whether a node converts between the floats that devices compute with.
pub(super) fn is_float_cast(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Cast(DType::F32 | DType::F16)) && graph.ty(node.inputs[0]).dtype.is_float()
}

/// A chain in the making.
#[derive(Clone)]
pub(super) struct Steps<'a> {
    graph: &'a Graph,
    /// Whether constants become numbers in the chain instead of inputs.
    constants: bool,
    refs: BTreeMap<ValueId, Ref>,
    /// The values that the chain reads, in the order of its inputs.
    pub inputs: Vec<ValueId>,
    steps: Vec<Step>,
}

impl<'a> Steps<'a> {
    /// An empty chain.
    pub fn new(graph: &'a Graph, constants: bool) -> Self {
        Steps { graph, constants, refs: BTreeMap::new(), inputs: Vec::new(), steps: Vec::new() }
    }

    /// Reads a value as an input.
    pub fn input(&mut self, value: ValueId) -> Ref {
        self.inputs.push(value);
        let r = Ref::Input(self.inputs.len() - 1);
        self.refs.insert(value, r);
        r
    }

    fn arg(&mut self, value: ValueId) -> Ref {
        if let Some(r) = self.refs.get(&value) {
            return *r;
        }
        match self.graph.fill(value).filter(|_| self.constants) {
            Some(number) => {
                let r = self.step(Step::Const(number.into()));
                self.refs.insert(value, r);
                r
            }
            None => self.input(value),
        }
    }

    fn step(&mut self, step: Step) -> Ref {
        self.steps.push(step);
        Ref::Step(self.steps.len() - 1)
    }

    /// Lets the sum of two values stand for another value: a linear's product and its bias.
    pub fn sum(&mut self, a: ValueId, b: ValueId, value: ValueId) {
        let (a, b) = (self.refs[&a], self.arg(b));
        let sum = self.step(Step::Binary(Binary::Add, a, b));
        self.refs.insert(value, sum);
    }

    /// Appends a node.
    pub fn node(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let args: Vec<Ref> = node.inputs.iter().map(|v| self.arg(*v)).collect();
        let result = match (&node.op, &args[..]) {
            (Op::Unary(f), [x]) => self.step(Step::Unary(*f, *x)),
            (Op::Binary(f), [a, b]) => self.step(Step::Binary(*f, *a, *b)),
            (Op::Compare(c), [a, b]) => self.step(Step::Compare(*c, *a, *b)),
            (Op::Where, [cond, a, b]) => self.step(Step::Select(*cond, *a, *b)),
            (Op::MaskedFill(fill), [x, mask]) => {
                let fill = self.step(Step::Const(*fill));
                self.step(Step::Select(*mask, fill, *x))
            }
            // a cast is exact or the rounding of a store
            (_, args) => args[0],
        };
        self.refs.insert(id.into(), result);
    }

    /// Rounds a value that the graph as written stores as f16, unless its op leaves nothing to round.
    pub fn store(&mut self, value: ValueId) {
        let node = self.graph.producer(value);
        let exact = match node.op {
            Op::Unary(Unary::Relu | Unary::Neg) | Op::Binary(Binary::Min | Binary::Max) | Op::Where => true,
            Op::MaskedFill(fill) => f16::from_f32(fill.get()).to_f32() == fill.get(),
            _ => false,
        };
        if self.graph.ty(value).dtype == DType::F16 && !exact {
            let rounded = self.step(Step::RoundF16(self.refs[&value]));
            self.refs.insert(value, rounded);
        }
    }

    /// Whether a constant became a number.
    pub fn has_numbers(&self) -> bool {
        self.refs.keys().any(|v| self.graph.fill(*v).is_some() && !self.inputs.contains(v))
    }

    /// Makes an input the first one.
    pub fn put_first(&mut self, input: usize) {
        self.inputs.swap(0, input);
        let swap = |r: Ref| match r {
            Ref::Input(0) => Ref::Input(input),
            Ref::Input(i) if i == input => Ref::Input(0),
            r => r,
        };
        self.steps.iter_mut().for_each(|s| *s = s.map(swap));
        self.refs.values_mut().for_each(|r| *r = swap(*r));
    }

    /// The chain; its result is the node that was appended last.
    pub fn chain(&self) -> Chain {
        Chain { arity: self.inputs.len(), steps: self.steps.clone() }
    }
}
